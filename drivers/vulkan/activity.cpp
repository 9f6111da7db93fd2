// SPDX-License-Identifier: BSD-3-Clause
// Records for a profile: timestamps before and after the commands of a call, or the host's times of
// what the host did.
#include "activity.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <optional>
#include <utility>

#include "driver.h"

namespace vulkan {
namespace {

using support::guarded;

thread_local uint64_t thread_correlation = 0;

constexpr uint32_t kKinds = OB_ACTIVITY_KERNEL | OB_ACTIVITY_COPY | OB_ACTIVITY_FILL | OB_ACTIVITY_HOST;

// Free the queries of records that nobody reads any more, once they are written.
void drop(Activity& activity) {
  Device& device = activity.point.timeline->device;
  const std::lock_guard lock(device.query_mutex);
  for (const int64_t query : activity.queries) device.used_queries.emplace_back(activity.point, query);
}

// Return the record with the times of its queries; nothing if they cannot be read.
std::optional<ob_activity> finish(const Activity& activity, const Clocks& clocks) {
  ob_activity record = activity.record;
  int64_t* const times[] = {&record.start, &record.end};
  Device& device = activity.point.timeline->device;
  for (int i = 0; i < 2; ++i) {
    uint64_t ticks = 0;
    if (read_query(device, activity.queries[i], &ticks) != OB_OK) return std::nullopt;
    *times[i] = clocks.monotonic + static_cast<int64_t>(nanoseconds(device, clocks.ticks, ticks));
  }
  return record;
}

ob_status activity_enable(void* self, uint32_t kinds) {
  return guarded("activity_enable", [&]() -> ob_status {
    if ((kinds & ~kKinds) != 0) {
      return fail(OB_INVALID_ARGUMENT, "activity_enable: unknown kinds 0x%x", kinds);
    }
    Driver& driver = *static_cast<Driver*>(self);
    for (const std::atomic<Device*>& slot : driver.devices) {
      const Device* device = slot.load(std::memory_order_acquire);
      if (kinds != 0 && device != nullptr && device->found.timestamp_bits == 0) {
        return fail(OB_UNIMPLEMENTED, "%s: its queues have no timestamps", where(*device).c_str());
      }
    }
    driver.activities.enable(kinds);
    return OB_OK;
  });
}

ob_status activity_correlate(void* self, uint64_t correlation) {
  static_cast<void>(self);
  thread_correlation = correlation;
  return OB_OK;
}

ob_status activity_read(void* self, size_t capacity, size_t stride, ob_activity* out_records, size_t* out_count) {
  return guarded("activity_read", [&]() -> ob_status {
    if (capacity > 0 && stride < sizeof(size_t)) {
      return fail(OB_INVALID_ARGUMENT, "activity_read: invalid stride of %zu", stride);
    }
    Driver& driver = *static_cast<Driver*>(self);
    return driver.activities.read(driver, capacity, stride, out_records, out_count);
  });
}

}  // namespace

int64_t monotonic_now() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void Activities::enable(uint32_t kinds) {
  const std::lock_guard lock(mutex_);
  if (kinds_.exchange(kinds) != 0) return;
  for (Activity& activity : records_) {
    if (activity.point.timeline != nullptr) drop(activity);
  }
  records_.clear();
}

void Activities::add(Activity activity) {
  const std::lock_guard lock(mutex_);
  records_.push_back(std::move(activity));
}

void Activities::forget(const Device& device) {
  const std::lock_guard lock(mutex_);
  std::erase_if(records_, [&](const Activity& activity) {
    return activity.point.timeline != nullptr && &activity.point.timeline->device == &device;
  });
}

ob_status Activities::read(Driver& driver, size_t capacity, size_t stride, ob_activity* out_records,
                           size_t* out_count) {
  std::vector<Activity> done;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = records_.begin(); at != records_.end() && done.size() < capacity;) {
      if (at->point.timeline != nullptr && !has_reached(at->point)) {
        ++at;
        continue;
      }
      done.push_back(std::move(*at));
      at = records_.erase(at);
    }
  }
  std::map<const Device*, Clocks> clocks;  // compared now: they drift
  *out_count = 0;
  for (Activity& activity : done) {
    std::optional<ob_activity> record = activity.record;
    if (activity.point.timeline != nullptr) {
      Device& device = activity.point.timeline->device;
      if (device.is_lost.load()) continue;
      if (!clocks.contains(&device)) {
        if (const ob_status status = compare_clocks(driver, device, &clocks[&device]); status != OB_OK) return status;
      }
      record = finish(activity, clocks[&device]);
      drop(activity);
    }
    if (!record.has_value()) continue;
    // The reader may have been compiled with a shorter record.
    char* out = reinterpret_cast<char*>(out_records) + *out_count * stride;
    size_t size = 0;
    std::memcpy(&size, out, sizeof size);
    if (size == 0 || size > stride) size = stride;
    record->struct_size = std::min(size, sizeof *record);
    std::memcpy(out, &*record, record->struct_size);
    ++*out_count;
  }
  return OB_OK;
}

bool Work::is_recorded(const Stream& stream) const {
  return (stream.device->activities->kinds() & kind) != 0;
}

ob_activity Work::record(const Stream& stream) const {
  ob_activity record = {};
  record.struct_size = sizeof record;
  record.kind = kind;
  record.device = stream.index;
  record.stream = stream.handle;
  record.correlation = thread_correlation;
  record.bytes = bytes;
  record.src_device = src_device;
  record.dst_device = dst_device;
  std::strncpy(record.name, name, sizeof record.name - 1);
  return record;
}

DeviceTiming::DeviceTiming(Stream& stream, const Work& work) : stream_(stream) {
  if (stream.graph != nullptr || stream.device->found.timestamp_bits == 0 || !work.is_recorded(stream)) return;
  if (open_batch(stream, &batch_) != OB_OK || write_query(stream, *batch_, &activity_.queries[0]) != OB_OK) {
    batch_ = nullptr;  // the commands themselves will fail
    return;
  }
  activity_.record = work.record(stream);
  activity_.point = {stream.timeline, stream.closed + 1};
  count_ = batch_->count;
}

DeviceTiming::~DeviceTiming() {
  if (batch_ == nullptr) return;
  const bool is_whole = batch_->count > count_ && write_query(stream_, *batch_, &activity_.queries[1]) == OB_OK;
  if (is_whole) {
    stream_.device->activities->add(std::move(activity_));
    return;
  }
  const std::lock_guard lock(stream_.device->query_mutex);
  stream_.device->used_queries.emplace_back(activity_.point, activity_.queries[0]);
}

HostTiming::HostTiming(const Stream& stream, const Work& work) : stream_(stream), work_(work) {
  is_recorded_ = work.is_recorded(stream);
  if (is_recorded_) start_ = monotonic_now();
}

HostTiming::~HostTiming() {
  if (!is_recorded_) return;
  Activity activity;
  activity.record = work_.record(stream_);
  activity.record.start = start_;
  activity.record.end = monotonic_now();
  stream_.device->activities->add(std::move(activity));
}

void fill_activity_entries(ob_driver* table) {
  table->activity_enable = activity_enable;
  table->activity_correlate = activity_correlate;
  table->activity_read = activity_read;
}

}  // namespace vulkan
