// SPDX-License-Identifier: BSD-3-Clause
// Events: the driver's event is taken from a pool at the first record and goes back there, so that destroying an event
// calls no driver entry and cannot fail.
#pragma once

#include <torch_outboard/driver.h>

#include <cstdint>
#include <utility>

#include "core/capture.h"
#include "core/export.h"
#include "core/stream.h"

namespace outboard {

class OUTBOARD_API Event {
 public:
  explicit Event(uint32_t flags = 0) noexcept : flags_(flags) {}
  ~Event() { reset(); }
  Event(Event&& other) noexcept
      : device_(std::exchange(other.device_, -1)),
        flags_(other.flags_),
        handle_(std::exchange(other.handle_, 0)),
        before_(std::move(other.before_)),
        mark_(std::move(other.mark_)) {}
  Event& operator=(Event&& other) noexcept {
    if (this != &other) {
      reset();
      device_ = std::exchange(other.device_, -1);
      flags_ = other.flags_;
      handle_ = std::exchange(other.handle_, 0);
      before_ = std::move(other.before_);
      mark_ = std::move(other.mark_);
    }
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  bool is_recorded() const noexcept { return handle_ != 0 || mark_; }
  c10::DeviceIndex device() const noexcept { return device_; }  // -1 before the first record
  bool is_captured() const noexcept { return mark_ != nullptr; }  // the latest record was on a capturing stream
  uint32_t flags() const noexcept { return flags_; }
  uint64_t handle() const noexcept { return handle_; }  // 0 before the first record

  // Queues a mark. An event belongs to the device of its first record; ValueError for a stream of another. On a stream
  // that captures, the event becomes a point of the capture: streams may wait for it, and then take part in the capture,
  // the host may not, neither while the capture lasts nor afterwards (CaptureError).
  void record(Stream& stream);
  // Queues a wait for the latest record at the time of this call, also across devices; nothing if there is none.
  void block(Stream& stream) const;
  // Whether the latest record is done; true if there is none.
  bool query() const;
  // Waits for the latest record, then raises the first failure of the work before it that the recording stream has not
  // told, once.
  void synchronize(Leave leave = Leave::Never) const;
  // Waits likewise, and leaves that failure to the next wait that is a user's. For what owns memory.
  void drain() const;
  // Milliseconds from this event to `end`; both recorded, with OB_EVENT_TIMING, on one device.
  double elapsed_ms(const Event& end) const;
  // Nanoseconds of CLOCK_MONOTONIC; a recorded timing event that is done.
  int64_t timestamp_ns() const;

 private:
  void reset() noexcept;
  void wait(Leave leave) const;
  void ask_until_done() const;
  void refuse_captured(const char* what) const;

  c10::DeviceIndex device_ = -1;
  uint32_t flags_;
  uint64_t handle_ = 0;
  Standing before_;  // what lies before the latest record; its stream lives as long as the process
  std::unique_ptr<CaptureMark> mark_;  // the latest record, if it was on a stream that captures
};

}  // namespace outboard
