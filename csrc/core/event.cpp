// SPDX-License-Identifier: BSD-3-Clause
#include "core/event.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "core/activity.h"
#include "core/blocking.h"
#include "core/device.h"
#include "core/error.h"
#include "core/kernel_failure.h"
#include "core/observer.h"
#include "core/pending.h"
#include "core/process.h"

namespace outboard {

namespace {

constexpr uint32_t kFlagCombinations = 8;  // of the three OB_EVENT_ bits

struct EventPool {
  std::mutex mutex;
  std::vector<uint64_t> free[kFlagCombinations];
};
EventPool pools[kMaxDevices];

uint64_t take_event(c10::DeviceIndex device, uint32_t flags) {
  std::vector<uint64_t>& free = pools[device].free[flags];
  {
    std::lock_guard lock(pools[device].mutex);
    if (!free.empty()) {
      const uint64_t handle = free.back();
      free.pop_back();
      return handle;
    }
  }
  uint64_t handle = 0;
  OB_CALL(event_create, device, flags, &handle);
  if (handle == 0) {
    raise(ErrorKind::Driver, OB_INTERNAL,
          "driver '" + driver_name() + "': event_create returned the handle 0, but an event's handle must not be 0");
  }
  return handle;
}

void give_event(c10::DeviceIndex device, uint32_t flags, uint64_t handle) noexcept {
  // Running out of memory here would lose one pooled event until the end of the process.
  std::lock_guard lock(pools[device].mutex);
  pools[device].free[flags].push_back(handle);
}

}  // namespace

void Event::reset() noexcept {
  if (handle_ != 0 && !driver_is_gone()) {
    give_event(device_, flags_, handle_);
  }
  handle_ = 0;
  device_ = -1;
  before_ = {};
  mark_.reset();
}

// Raise for a mark of a capture, which the host cannot query.
void Event::refuse_captured(const char* what) const {
  if (C10_LIKELY(!mark_)) {
    return;
  }
  if (mark_->capture->is_active(mark_->id)) {
    mark_->capture->refuse(std::string(what) + "() of an event that was recorded on a capturing stream");
  }
  raise(ErrorKind::Capture, OB_FAILED_PRECONDITION,
        std::string(what) +
            "() cannot use an event whose latest record was captured in a graph: record the event again outside the"
            " capture");
}

void Event::record(Stream& stream) {
  const uint64_t stream_raw = stream_handle(stream);
  if (device_ >= 0 && device_ != stream.device) {
    raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT,
          "Event device " + std::to_string(static_cast<int>(device_)) + " does not match recording stream's device " +
              std::to_string(static_cast<int>(stream.device)) +
              ": an event belongs to the device on which it was first recorded. Create another event for this stream");
  }
  std::unique_ptr<CaptureMark> mark;
  if (Capture* capture = capture_of(stream); C10_UNLIKELY(capture != nullptr)) {
    mark = std::make_unique<CaptureMark>(capture->mark(stream));
    if (!capture->is_native()) {
      mark_ = std::move(mark);
      device_ = stream.device;
      before_ = {&stream, 0, {}};
      return;
    }
  }
  if (handle_ == 0) {
    if (flags_ >= kFlagCombinations) {
      raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT, "unknown event flags " + std::to_string(flags_));
    }
    handle_ = take_event(stream.device, flags_);
    device_ = stream.device;
  }
  StreamPosition before = advance_position(stream);
  detail::fetch_record(stream);
  const ob_status status = driver().event_record(driver().self, device_, stream_raw, handle_);
  if (status != OB_OK) {
    if (before_.stream == nullptr) {
      reset();  // the record failed: the event must not look recorded
    }
    raise_status(status, "event_record", stream.device);
  }
  before_ = std::move(before);
  mark_ = std::move(mark);
  observe_order(ObservedOrder::EventRecord, device_, stream.id, device_, handle_);
}

void Event::block(Stream& stream) const {
  flush_pending(stream);  // what it does from here on waits, or is captured
  if (C10_UNLIKELY(mark_ != nullptr)) {
    mark_->capture->join(stream, *mark_);
    if (!mark_->capture->is_native()) {
      return;
    }
  } else if (handle_ != 0) {
    refuse_in_capture(stream, "a wait for an event that was recorded outside the capture");
  }
  if (handle_ != 0) {
    ensure_open(device_);
    ActivityScope activity(stream, {ActivityKind::Wait, "stream_wait_event"});
    const TrackedCall noted("stream_wait_event", stream.device, &stream);
    check(driver().stream_wait_event(driver().self, stream.device, stream_handle(stream), device_, handle_),
          "stream_wait_event", stream.device);
    activity.finish();
    depend_on(stream, before_);
    observe_order(ObservedOrder::EventWait, stream.device, stream.id, device_, handle_);
  }
}

bool Event::query() const {
  refuse_captured("query");
  if (handle_ == 0) {
    return true;
  }
  ensure_open(device_);
  const ob_status status = driver().event_query(driver().self, device_, handle_);
  if (status != OB_NOT_READY) {
    check(status, "event_query", device_);
    observe_order(ObservedOrder::EventSync, device_, 0, device_, handle_);
  }
  return status == OB_OK;
}

void Event::synchronize(Interruptible interruptible) const {
  wait(interruptible);
  if (handle_ != 0) {
    raise_failures(before_);
    detail::after_wait(device_);
  }
}

void Event::synchronize_for_queued_work() const {
  wait(Interruptible::No);
  if (handle_ != 0) {
    raise_failures(before_, QueryDriver::No);
    detail::after_wait(device_);
  }
}

void Event::drain() const {
  wait(Interruptible::No);
}

void Event::wait(Interruptible interruptible) const {
  refuse_captured("synchronize");
  if (handle_ == 0) {
    return;
  }
  ensure_open(device_);
  ActivityScope activity(*before_.stream, {ActivityKind::Wait, "event_synchronize"});
  if (interruptible == Interruptible::Yes && detail::can_interrupt("event_synchronize")) {
    poll_until_done();
  }
  if (driver().event_synchronize) {
    ob_status status;
    {
      const TrackedWait waiting("event_synchronize", device_, before_.stream);
      status = driver().event_synchronize(driver().self, device_, handle_);
    }
    if (!is_unimplemented(status)) {
      check(status, "event_synchronize", device_);
      activity.finish();
      observe_order(ObservedOrder::EventSync, device_, 0, device_, handle_);
      return;
    }
  }
  // The driver has no entry for waiting: poll with growing pauses, up to a millisecond.
  std::chrono::microseconds pause{1};
  const TrackedWait waiting("event_query", device_, before_.stream);
  while (!query()) {
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds{1000});
  }
  activity.finish();
  observe_order(ObservedOrder::EventSync, device_, 0, device_, handle_);
}

// Poll, so that a signal may end the wait.
void Event::poll_until_done() const {
  const auto is_done = [](void* user) {
    const Event& event = *static_cast<const Event*>(user);
    const ob_status status = driver().event_query(driver().self, event.device_, event.handle_);
    if (C10_UNLIKELY(status == OB_DEVICE_LOST)) {
      raise_status(status, "event_query", event.device_);
    }
    return status != OB_NOT_READY;
  };
  void* const self = const_cast<Event*>(this);
  if (!is_done(self)) {
    const TrackedWait waiting("event_synchronize", device_, before_.stream);
    detail::poll_until_done(waiting, device_, is_done, self);
  }
}

double Event::elapsed_ms(const Event& end) const {
  refuse_captured("elapsed_time");
  end.refuse_captured("elapsed_time");
  if (handle_ == 0 || end.handle_ == 0) {
    raise(ErrorKind::InvalidArgument, OB_FAILED_PRECONDITION,
          "Both events must be recorded before calculating elapsed time.");
  }
  if (!(flags_ & OB_EVENT_TIMING) || !(end.flags_ & OB_EVENT_TIMING)) {
    raise(ErrorKind::InvalidArgument, OB_FAILED_PRECONDITION,
          "Both events must be created with argument 'enable_timing=True'.");
  }
  if (device_ != end.device_) {
    raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT, "Both events must be recorded on the same device.");
  }
  if (!query() || !end.query()) {
    raise(ErrorKind::Driver, OB_NOT_READY,
          "Both events must be completed before calculating elapsed time: synchronize the second one first.");
  }
  if (driver().event_elapsed) {
    double milliseconds = 0;
    const ob_status status = driver().event_elapsed(driver().self, device_, handle_, end.handle_, &milliseconds);
    if (!is_unimplemented(status)) {
      check(status, "event_elapsed", device_);
      return milliseconds;
    }
  }
  if (!driver().event_timestamp) {
    raise_not_supported("event_elapsed", "timing of events");
  }
  return static_cast<double>(end.timestamp_ns() - timestamp_ns()) * 1e-6;
}

int64_t Event::timestamp_ns() const {
  if (!driver().event_timestamp) {
    raise_not_supported("event_timestamp", "reading the time of an event");
  }
  ensure_open(device_);
  int64_t nanoseconds = 0;
  OB_CALL(event_timestamp, device_, handle_, &nanoseconds);
  return nanoseconds;
}

}  // namespace outboard
