// SPDX-License-Identifier: BSD-3-Clause
// Events: a record is a point of its stream's timeline, and a timestamp if the event has times.
#include <algorithm>
#include <utility>

#include "driver.h"

namespace vulkan {
namespace {

using support::guarded;
using support::with_device;
using support::with_event;

constexpr int64_t kQueriesPerPool = 1024;
constexpr int kComparisons = 3;  // of clocks

// Find a query that no work under way writes.
ob_status take_query(Device& device, int64_t* out_query) {
  const std::lock_guard lock(device.query_mutex);
  if (device.free_queries.empty()) {
    std::erase_if(device.used_queries, [&](const std::pair<Point, int64_t>& used) {
      if (!has_reached(used.first)) return false;
      device.free_queries.push_back(used.second);
      return true;
    });
  }
  if (device.free_queries.empty()) {
    VkQueryPoolCreateInfo info = {};
    info.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
    info.queryType = VK_QUERY_TYPE_TIMESTAMP;
    info.queryCount = kQueriesPerPool;
    VkQueryPool pool = nullptr;
    const VkResult code = device.api.CreateQueryPool(device.device, &info, nullptr, &pool);
    if (code != VK_SUCCESS) return vk_fail(code, "vkCreateQueryPool", where(device));
    const auto first = static_cast<int64_t>(device.query_pools.size()) * kQueriesPerPool;
    device.query_pools.push_back(pool);
    for (int64_t i = 0; i < kQueriesPerPool; ++i) device.free_queries.push_back(first + i);
  }
  *out_query = device.free_queries.back();
  device.free_queries.pop_back();
  device.api.ResetQueryPool(device.device, device.query_pools[static_cast<size_t>(*out_query / kQueriesPerPool)],
                            static_cast<uint32_t>(*out_query % kQueriesPerPool), 1);
  return OB_OK;
}

VkQueryPool pool_of(Device& device, int64_t query) {
  const std::lock_guard lock(device.query_mutex);
  return device.query_pools[static_cast<size_t>(query / kQueriesPerPool)];
}

// Return the latest record, null if there is none. The host sees nothing of a graph's.
ob_status find_record(Event& event, std::shared_ptr<Record>* out_record) {
  const std::lock_guard lock(event.mutex);
  *out_record = event.record;
  if (event.record == nullptr || !event.record->is_captured) return OB_OK;
  return fail(
      OB_FAILED_PRECONDITION,
      "device %d: the event's latest record was captured in a graph; record the event again outside the capture",
      event.device);
}

// Write the record's timestamp behind the stream's work. Call it with the stream's mutex held.
ob_status write_timestamp(Stream& stream, Record& record) {
  Batch* batch = nullptr;
  if (const ob_status status = open_batch(stream, &batch); status != OB_OK) return status;
  if (const ob_status status = write_query(stream, *batch, &record.query); status != OB_OK) return status;
  ++batch->count;
  return OB_OK;
}

// Let the host wait for a timestamp, a few times, and take the shortest wait. The timestamp is
// written at the wait's end, however long the device was at work before.
ob_status compare_by_wait(Driver& driver, Device& device, Clocks* out_clocks) {
  Stream* own = nullptr;
  if (const ob_status status = driver.find_stream(device.index, device.own_stream, &own); status != OB_OK) {
    return status;
  }
  int64_t shortest = INT64_MAX;
  for (int i = 0; i < kComparisons; ++i) {
    Record record;
    const int64_t start = monotonic_now();
    {
      const std::lock_guard lock(own->mutex);
      if (const ob_status status = write_timestamp(*own, record); status != OB_OK) return status;
      record.point = {own->timeline, close(*own)};
    }
    if (const ob_status status = wait_for(record.point); status != OB_OK) return status;
    const int64_t end = monotonic_now();
    if (end - start >= shortest) continue;
    shortest = end - start;
    out_clocks->monotonic = end;
    if (const ob_status status = read_query(device, record.query, &out_clocks->ticks); status != OB_OK) return status;
  }
  return OB_OK;
}

ob_status event_create(void* self, int32_t index, uint32_t flags, uint64_t* out_event) {
  return with_device<Driver>(self, index, "event_create", [&](Driver& driver, Device* device) -> ob_status {
    if ((flags & OB_EVENT_INTERPROCESS) != 0) {
      return fail(OB_INVALID_ARGUMENT, "device %d: events cannot be shared between processes", index);
    }
    if ((flags & OB_EVENT_TIMING) != 0 && device->found.timestamp_bits == 0) {
      return fail(OB_UNIMPLEMENTED, "%s: its queues have no timestamps, which timed events need",
                  where(*device).c_str());
    }
    auto event = std::make_unique<Event>();
    event->device = index;
    event->is_timing = (flags & OB_EVENT_TIMING) != 0;
    event->is_host = (flags & OB_EVENT_HOST) != 0;
    if (event->is_host) {
      event->record = std::make_shared<Record>();
      event->record->point = {std::make_shared<Timeline>(*device), 1};
    }
    *out_event = driver.events.make(std::move(event));
    return OB_OK;
  });
}

// Complete a host event. Return false if it was already complete.
bool signal(Event& event) {
  Timeline& timeline = *event.record->point.timeline;
  if (timeline.done.exchange(1) != 0) return false;
  notify_host_progress(timeline.device);
  return true;
}

ob_status event_signal(void* self, int32_t index, uint64_t handle) {
  return with_event<Driver>(self, index, handle, "event_signal", [&](Driver& driver, Event* event) -> ob_status {
    if (!event->is_host) {
      return fail(OB_INVALID_ARGUMENT, "device %d: event_signal takes events that were created with OB_EVENT_HOST only",
                  index);
    }
    if (signal(*event)) return OB_OK;
    return fail(OB_FAILED_PRECONDITION, "device %d: the event was already signalled", index);
  });
}

ob_status event_destroy(void* self, int32_t index, uint64_t handle) {
  return guarded("event_destroy", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Event* found = nullptr;
    if (const ob_status status = driver.find_event(index, handle, &found); status != OB_OK) return status;
    std::unique_ptr<Event> event;
    if (!driver.events.take(handle, &event))
      return fail(OB_INVALID_ARGUMENT, "two threads are destroying the same event");
    if (event->is_host) signal(*event);  // which may have come before
    return OB_OK;
  });
}

ob_status event_record(void* self, int32_t index, uint64_t stream_handle, uint64_t handle) {
  return guarded("event_record", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Stream* stream = nullptr;
    Event* event = nullptr;
    if (const ob_status status = driver.find_stream(index, stream_handle, &stream); status != OB_OK) return status;
    if (const ob_status status = driver.find_event(index, handle, &event); status != OB_OK) return status;
    if (event->is_host) {
      return fail(OB_INVALID_ARGUMENT, "device %d: an event for event_signal (OB_EVENT_HOST) cannot be recorded",
                  index);
    }
    auto record = std::make_shared<Record>();
    {
      const std::lock_guard lock(stream->mutex);
      record->is_captured = stream->graph != nullptr;
      if (record->is_captured) {
        record->capture = stream->graph;
      } else {
        record->point.timeline = stream->timeline;
        if (event->is_timing) {
          if (const ob_status status = write_timestamp(*stream, *record); status != OB_OK) return status;
        }
        record->point.value = close(*stream);
      }
    }
    {
      const std::lock_guard lock(event->mutex);
      std::swap(event->record, record);
    }
    // A wait or a query for the event does not make this stream start.
    wake_submitter(*stream->device);
    return OB_OK;
  });
}

ob_status event_query(void* self, int32_t index, uint64_t handle) {
  return with_event<Driver>(self, index, handle, "event_query", [&](Driver& driver, Event* event) -> ob_status {
    std::shared_ptr<Record> record;
    if (const ob_status status = find_record(*event, &record); status != OB_OK) return status;
    if (record == nullptr) return OB_OK;
    const Device& device = record->point.timeline->device;
    if (device.is_lost.load()) return fail(OB_DEVICE_LOST, "%s is lost", where(device).c_str());
    return has_reached(record->point) ? OB_OK : OB_NOT_READY;
  });
}

ob_status event_synchronize(void* self, int32_t index, uint64_t handle) {
  return with_event<Driver>(self, index, handle, "event_synchronize", [&](Driver& driver, Event* event) -> ob_status {
    std::shared_ptr<Record> record;
    if (const ob_status status = find_record(*event, &record); status != OB_OK) return status;
    return record == nullptr ? OB_OK : wait_for(record->point);
  });
}

// Return when the latest record was reached, in ticks of the device's clock.
ob_status reached(Driver& driver, int32_t index, uint64_t handle, uint64_t* out_ticks) {
  Event* event = nullptr;
  if (const ob_status status = driver.find_event(index, handle, &event); status != OB_OK) return status;
  std::shared_ptr<Record> record;
  if (const ob_status status = find_record(*event, &record); status != OB_OK) return status;
  if (record == nullptr || record->query < 0) {
    return fail(OB_FAILED_PRECONDITION,
                "device %d: the event was never recorded, or was created without OB_EVENT_TIMING", index);
  }
  Device& device = record->point.timeline->device;
  if (!has_reached(record->point)) {
    return fail(OB_FAILED_PRECONDITION, "device %d: the event is not complete; synchronize it first", index);
  }
  return read_query(device, record->query, out_ticks);
}

ob_status event_elapsed(void* self, int32_t index, uint64_t start, uint64_t end, double* out_milliseconds) {
  return guarded("event_elapsed", [&]() -> ob_status {
    uint64_t from = 0;
    uint64_t to = 0;
    Device* device = nullptr;
    Driver& driver = *static_cast<Driver*>(self);
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    if (const ob_status status = reached(driver, index, start, &from); status != OB_OK) return status;
    if (const ob_status status = reached(driver, index, end, &to); status != OB_OK) return status;
    *out_milliseconds = nanoseconds(*device, from, to) * 1e-6;
    return OB_OK;
  });
}

ob_status event_timestamp(void* self, int32_t index, uint64_t handle, int64_t* out_nanoseconds) {
  return guarded("event_timestamp", [&]() -> ob_status {
    uint64_t ticks = 0;
    Device* device = nullptr;
    Driver& driver = *static_cast<Driver*>(self);
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    if (const ob_status status = reached(driver, index, handle, &ticks); status != OB_OK) return status;
    Clocks now;  // the clocks drift, so they are compared each time
    if (const ob_status status = compare_clocks(driver, *device, &now); status != OB_OK) return status;
    *out_nanoseconds = now.monotonic + static_cast<int64_t>(nanoseconds(*device, now.ticks, ticks));
    return OB_OK;
  });
}

}  // namespace

ob_status write_query(Stream& stream, Batch& batch, int64_t* out_query) {
  Device& device = *stream.device;
  if (const ob_status status = take_query(device, out_query); status != OB_OK) return status;
  device.api.CmdWriteTimestamp2(batch.commands, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, pool_of(device, *out_query),
                                static_cast<uint32_t>(*out_query % kQueriesPerPool));
  return OB_OK;
}

ob_status read_query(Device& device, int64_t query, uint64_t* out_ticks) {
  const VkResult code = device.api.GetQueryPoolResults(
      device.device, pool_of(device, query), static_cast<uint32_t>(query % kQueriesPerPool), 1, sizeof *out_ticks,
      out_ticks, sizeof *out_ticks, VK_QUERY_RESULT_64_BIT);
  if (code == VK_NOT_READY) return fail(OB_INTERNAL, "%s: the event's work did not run", where(device).c_str());
  return code == VK_SUCCESS ? OB_OK : vk_fail(code, "vkGetQueryPoolResults", where(device));
}

double nanoseconds(const Device& device, uint64_t from, uint64_t to) {
  const uint32_t unused = 64 - std::min(device.found.timestamp_bits, 64u);
  const int64_t ticks = static_cast<int64_t>((to - from) << unused) >> unused;
  return static_cast<double>(ticks) * static_cast<double>(device.found.properties.limits.timestampPeriod);
}

ob_status compare_clocks(Driver& driver, Device& device, Clocks* out_clocks) {
  const auto read = device.api.GetCalibratedTimestampsKHR != nullptr ? device.api.GetCalibratedTimestampsKHR
                                                                     : device.api.GetCalibratedTimestampsEXT;
  if (!device.found.has_clocks || read == nullptr) return compare_by_wait(driver, device, out_clocks);
  const VkCalibratedTimestampInfoEXT clocks[] = {
      {VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, nullptr, VK_TIME_DOMAIN_DEVICE_EXT},
      {VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, nullptr, VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT}};
  uint64_t now[2] = {};
  uint64_t deviation = 0;
  const VkResult code = read(device.device, 2, clocks, now, &deviation);
  if (code != VK_SUCCESS) return vk_fail(code, "vkGetCalibratedTimestamps", where(device));
  *out_clocks = {now[0], static_cast<int64_t>(now[1])};
  return OB_OK;
}

Record::~Record() {
  if (query < 0) return;
  Device& device = point.timeline->device;
  const std::lock_guard lock(device.query_mutex);
  device.used_queries.emplace_back(std::move(point), query);
}

void fill_event_entries(ob_driver* table) {
  table->event_create = event_create;
  table->event_destroy = event_destroy;
  table->event_record = event_record;
  table->event_query = event_query;
  table->event_synchronize = event_synchronize;
  table->event_elapsed = event_elapsed;
  table->event_timestamp = event_timestamp;
  table->event_signal = event_signal;
}

}  // namespace vulkan
