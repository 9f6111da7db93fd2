// SPDX-License-Identifier: BSD-3-Clause
#include "core/host_event.h"

#include <mutex>
#include <utility>
#include <vector>

#include "core/activity.h"
#include "core/capture.h"
#include "core/device.h"
#include "core/error.h"
#include "core/process.h"

namespace outboard {

namespace {

// Events without owners. The next event created on their device destroys them.
struct FreeHandles {
  std::mutex mutex;
  std::vector<uint64_t> handles;
};
FreeHandles free_handles[kMaxDevices];

void destroy_free_handles(c10::DeviceIndex device) {
  std::vector<uint64_t> handles;
  {
    const std::lock_guard lock(free_handles[device].mutex);
    handles.swap(free_handles[device].handles);
  }
  while (!handles.empty()) {
    try {
      OB_CALL(event_destroy, device, handles.back());
    } catch (...) {  // a stream may wait for it: the next creation tries again
      const std::lock_guard lock(free_handles[device].mutex);
      free_handles[device].handles.insert(free_handles[device].handles.end(), handles.begin(), handles.end());
      throw;
    }
    handles.pop_back();
  }
}

}  // namespace

HostEvent::HostEvent(Stream& stream) : stream_(stream), position_(next_unique_position(stream)) {
  stream_handle(stream);  // opens the device
  destroy_free_handles(stream.device);
  OB_CALL(event_create, stream.device, static_cast<uint32_t>(OB_EVENT_HOST), &handle_);
  if (handle_ == 0) {
    raise(ErrorKind::Driver, OB_INTERNAL,
          "driver '" + driver_name() + "': event_create returned the handle 0, but an event's handle must not be 0");
  }
}

HostEvent::~HostEvent() {
  if (!driver_is_gone() && !is_destroyed_.load()) {
    const std::lock_guard lock(free_handles[stream_.device].mutex);
    free_handles[stream_.device].handles.push_back(handle_);
  }
}

void HostEvent::block(const char* name) {
  refuse_in_capture(stream_, name);
  if (is_destroyed_.load()) {  // and so completed
    return;
  }
  const uint64_t stream = stream_handle(stream_);
  ActivityScope activity(stream_, {ActivityKind::Wait, "stream_wait_event"});
  const TrackedCall noted("stream_wait_event", stream_.device, &stream_);
  check(driver().stream_wait_event(driver().self, stream_.device, stream, stream_.device, handle_), "stream_wait_event",
        stream_.device);
  activity.finish();
  stream_.last_work.store(name, std::memory_order_relaxed);
}

void HostEvent::signal(std::exception_ptr error) {
  if (is_signalled_.exchange(true) || driver_is_gone()) {
    return;
  }
  if (error) {
    report_failure(position_, std::move(error));
  }
  try {
    OB_CALL(event_signal, stream_.device, handle_);
  } catch (...) {
    // A stream that is never released would hang its rank. Destroying the event completes it; the
    // stream's waits raise the driver's error.
    const std::exception_ptr failure = std::current_exception();
    if (!error) {
      report_failure(position_, failure);
    }
    is_destroyed_.store(driver().event_destroy(driver().self, stream_.device, handle_) == OB_OK);
    if (!is_destroyed_.load()) {
      mark_lost(stream_.device, "a stream waits forever: neither event_signal nor event_destroy completed its event");
    }
    throw;
  }
}

}  // namespace outboard
