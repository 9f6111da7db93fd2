// SPDX-License-Identifier: BSD-3-Clause
// The entries about streams.
#include "entries.h"

namespace sim {
namespace {

ob_status stream_create(void* self, int32_t index, int32_t priority, uint64_t* out_stream) {
  return enter_device<Entry::stream_create>(self, index, [&](const Call& call, Device&) -> ob_status {
    if (priority < -1 || priority > 0) {
      return fail(OB_INVALID_ARGUMENT, "device %d: a stream's priority must be 0 or -1, not %d", index, priority);
    }
    return call.driver.create_stream(index, priority, out_stream);
  });
}

ob_status stream_destroy(void* self, int32_t index, uint64_t handle) {
  return enter<Entry::stream_destroy>(self,
                                      [&](const Call& call) { return call.driver.destroy_stream(index, handle); });
}

ob_status stream_synchronize(void* self, int32_t index, uint64_t handle) {
  return enter<Entry::stream_synchronize>(self, [&](const Call& call) -> ob_status {
    Stream* stream = call.driver.stream(index, handle);
    if (stream == nullptr) return OB_INVALID_ARGUMENT;
    const uint64_t position = stream->tail.load(std::memory_order_acquire);
    if (!stream->is_done(position)) call.driver.scheduler->wait(stream, position, true);
    return stream->failure.take();
  });
}

ob_status stream_query(void* self, int32_t index, uint64_t handle) {
  return enter<Entry::stream_query>(self, [&](const Call& call) -> ob_status {
    Stream* stream = call.driver.stream(index, handle);
    if (stream == nullptr) return OB_INVALID_ARGUMENT;
    if (stream->is_drained()) return OB_OK;
    call.driver.scheduler->poll();
    return stream->is_drained() ? OB_OK : OB_NOT_READY;
  });
}

ob_status stream_wait_event(void* self, int32_t index, uint64_t handle, int32_t event_device, uint64_t event_handle) {
  return enter<Entry::stream_wait_event>(self, [&](const Call& call) -> ob_status {
    Stream* stream = call.driver.stream(index, handle);
    if (stream == nullptr) return OB_INVALID_ARGUMENT;
    Event* event = call.driver.event(event_device, event_handle);
    if (event == nullptr) return OB_INVALID_ARGUMENT;
    const Point point = event->latest();
    if (point.is_reached() || point.stream == stream) return OB_OK;
    if (call.driver.options.schedule == Schedule::kInline) {
      call.driver.scheduler->wait(point.stream, point.position, true);  // another thread is working on it
      return OB_OK;
    }
    Task task = {};
    task.work = Work::kWait;
    task.wait = {point.stream, point.position};
    return call.driver.queue(stream, handle, task);
  });
}

ob_status host_callback(void* self, int32_t index, uint64_t handle, ob_host_fn fn, void* user) {
  return enter<Entry::host_callback>(self, [&](const Call& call) -> ob_status {
    Stream* stream = call.driver.stream(index, handle);
    if (stream == nullptr) return OB_INVALID_ARGUMENT;
    Task task;
    task.work = Work::kCall;
    task.injected = call.injected;
    task.correlation = call.driver.activity.kinds() != 0 ? Activity::correlation() : 0;
    task.call = {fn, user};
    return call.driver.queue(stream, handle, task);
  });
}

}  // namespace

void fill_stream_entries(ob_driver* table) {
  table->stream_create = stream_create;
  table->stream_destroy = stream_destroy;
  table->stream_synchronize = stream_synchronize;
  table->stream_query = stream_query;
  table->stream_wait_event = stream_wait_event;
  table->host_callback = host_callback;
}

}  // namespace sim
