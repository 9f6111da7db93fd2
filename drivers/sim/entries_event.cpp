// SPDX-License-Identifier: BSD-3-Clause
// The entries about events.
#include "entries.h"

namespace sim {
namespace {

ob_status event_create(void* self, int32_t index, uint32_t flags, uint64_t* out_event) {
  return enter_device<Entry::event_create>(self, index, [&](const Call& call, Device& device) -> ob_status {
    if ((flags & OB_EVENT_INTERPROCESS) != 0) {
      return fail(OB_UNIMPLEMENTED, "device %d: events between processes are not supported", index);
    }
    const bool is_host = flags == OB_EVENT_HOST && call.driver.options.schedule != Schedule::kInline;
    if ((flags & ~(OB_EVENT_TIMING | OB_EVENT_BLOCKING)) != 0 && !is_host) {
      return fail(OB_INVALID_ARGUMENT, "device %d: unknown event flags 0x%x", index, flags);
    }
    uint64_t handle = 0;
    Event* event = call.driver.events.take(index, &handle);
    if (event == nullptr) return fail(OB_OUT_OF_MEMORY, "device %d: too many events", index);
    uint64_t gate_handle = 0;
    Stream* gate = nullptr;
    if (is_host && (gate = call.driver.gates.take(index, &gate_handle)) == nullptr) {
      call.driver.events.give_back(handle);
      return fail(OB_OUT_OF_MEMORY, "device %d: too many events", index);
    }
    event->reset(flags, gate, gate_handle);
    event->handle.store(handle, std::memory_order_release);
    device.event_count.fetch_add(1, std::memory_order_relaxed);
    *out_event = handle;
    return OB_OK;
  });
}

// Release the streams that wait for the event. Return false if they were released before.
bool open_gate(Driver& driver, Event& event) {
  uint64_t gate_handle = 0;
  Stream* gate = event.take_gate(&gate_handle);
  if (gate == nullptr) return false;
  for (Stream* released = gate->open(); released != nullptr;) {
    Stream* next = released->next;
    driver.scheduler->make_ready(released);
    released = next;
  }
  driver.gates.give_back(gate_handle);
  driver.scheduler->resume();
  return true;
}

ob_status event_signal(void* self, int32_t index, uint64_t handle) {
  return enter<Entry::event_signal>(self, [&](const Call& call) -> ob_status {
    Event* event = call.driver.event(index, handle);
    if (event == nullptr) return OB_INVALID_ARGUMENT;
    if (!event->is_host()) {
      return fail(OB_INVALID_ARGUMENT,
                  "device %d: event 0x%" PRIx64 " was created without OB_EVENT_HOST, which event_signal needs", index,
                  handle);
    }
    if (open_gate(call.driver, *event)) return OB_OK;
    return fail(OB_FAILED_PRECONDITION, "device %d: event 0x%" PRIx64 " was already signalled", index, handle);
  });
}

ob_status event_destroy(void* self, int32_t index, uint64_t handle) {
  return enter_device<Entry::event_destroy>(self, index, [&](const Call& call, Device& device) -> ob_status {
    Event* event = call.driver.event(index, handle);
    uint64_t expected = handle;
    if (event == nullptr) return OB_INVALID_ARGUMENT;
    if (!event->handle.compare_exchange_strong(expected, 0)) {
      return fail(OB_INVALID_ARGUMENT, "device %d: event 0x%" PRIx64 " is being destroyed by two threads", index,
                  handle);
    }
    open_gate(call.driver, *event);
    device.event_count.fetch_sub(1, std::memory_order_relaxed);
    call.driver.events.give_back(handle);
    return OB_OK;
  });
}

ob_status event_record(void* self, int32_t index, uint64_t stream_handle, uint64_t handle) {
  return enter<Entry::event_record>(self, [&](const Call& call) -> ob_status {
    Stream* stream = call.driver.stream(index, stream_handle);
    if (stream == nullptr) return OB_INVALID_ARGUMENT;
    Event* event = call.driver.event(index, handle);
    if (event == nullptr) return OB_INVALID_ARGUMENT;
    if (event->is_host()) {
      return fail(OB_INVALID_ARGUMENT,
                  "device %d: event 0x%" PRIx64 " was created with OB_EVENT_HOST, and cannot be"
                  " recorded",
                  index, handle);
    }
    const uint64_t record = event->begin_record();
    if ((event->flags.load(std::memory_order_relaxed) & OB_EVENT_TIMING) == 0) {
      // A record without a time needs only the stream's position.
      event->set_record(record, {stream, stream->tail.load(std::memory_order_acquire)});
      return OB_OK;
    }
    Task task = {};
    task.work = Work::kMark;
    task.mark = {event, record};
    uint64_t position = 0;
    const ob_status status = call.driver.queue(stream, stream_handle, task, &position);
    if (status == OB_OK) event->set_record(record, {stream, position});
    return status;
  });
}

ob_status event_query(void* self, int32_t index, uint64_t handle) {
  return enter<Entry::event_query>(self, [&](const Call& call) -> ob_status {
    Event* event = call.driver.event(index, handle);
    if (event == nullptr) return OB_INVALID_ARGUMENT;
    const Point point = event->latest();
    if (point.is_reached()) return OB_OK;
    call.driver.scheduler->poll();
    return point.is_reached() ? OB_OK : OB_NOT_READY;
  });
}

ob_status event_synchronize(void* self, int32_t index, uint64_t handle) {
  return enter<Entry::event_synchronize>(self, [&](const Call& call) -> ob_status {
    Event* event = call.driver.event(index, handle);
    if (event == nullptr) return OB_INVALID_ARGUMENT;
    const Point point = event->latest();
    const bool may_spin = (event->flags.load(std::memory_order_relaxed) & OB_EVENT_BLOCKING) == 0;
    if (!point.is_reached()) call.driver.scheduler->wait(point.stream, point.position, may_spin);
    return OB_OK;
  });
}

// Return when the latest record was reached.
ob_status time_of(Driver& driver, int32_t index, uint64_t handle, int64_t* out_nanoseconds) {
  Event* event = driver.event(index, handle);
  if (event == nullptr) return OB_INVALID_ARGUMENT;
  if ((event->flags.load(std::memory_order_relaxed) & OB_EVENT_TIMING) == 0) {
    return fail(OB_INVALID_ARGUMENT, "device %d: event 0x%" PRIx64 " has no time; create it with OB_EVENT_TIMING",
                index, handle);
  }
  const Point point = event->latest();
  if (point.stream == nullptr) {
    return fail(OB_FAILED_PRECONDITION, "device %d: event 0x%" PRIx64 " was not recorded", index, handle);
  }
  if (!point.is_reached() || !event->time(out_nanoseconds)) {
    return fail(OB_NOT_READY, "device %d: event 0x%" PRIx64 " is not complete; synchronize it first", index, handle);
  }
  return OB_OK;
}

ob_status event_elapsed(void* self, int32_t index, uint64_t start, uint64_t end, double* out_milliseconds) {
  return enter<Entry::event_elapsed>(self, [&](const Call& call) {
    int64_t begin_time = 0;
    int64_t end_time = 0;
    ob_status status = time_of(call.driver, index, start, &begin_time);
    if (status == OB_OK) status = time_of(call.driver, index, end, &end_time);
    if (status == OB_OK) *out_milliseconds = static_cast<double>(end_time - begin_time) / 1e6;
    return status;
  });
}

ob_status event_timestamp(void* self, int32_t index, uint64_t handle, int64_t* out_nanoseconds) {
  return enter<Entry::event_timestamp>(
      self, [&](const Call& call) { return time_of(call.driver, index, handle, out_nanoseconds); });
}

}  // namespace

void fill_event_entries(ob_driver* table, bool has_signal) {
  table->event_create = event_create;
  table->event_destroy = event_destroy;
  table->event_record = event_record;
  table->event_query = event_query;
  table->event_synchronize = event_synchronize;
  table->event_elapsed = event_elapsed;
  table->event_timestamp = event_timestamp;
  if (has_signal) table->event_signal = event_signal;
}

}  // namespace sim
