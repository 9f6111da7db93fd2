// SPDX-License-Identifier: BSD-3-Clause
// Events. The driver's event is taken from a pool at the first record and returned there, so
// destroying an event calls no driver entry and cannot fail.
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

  // Queue a mark. An event belongs to the device of its first record; raise ValueError for a stream
  // of another device. On a capturing stream the event becomes a point of the capture. Streams may
  // wait for it, and then take part in the capture. The host may not wait for it, during the
  // capture or afterwards (CaptureError).
  void record(Stream& stream);
  // Queue a wait for the event's latest record at the time of this call, possibly across devices.
  // Do nothing if there is no record.
  void block(Stream& stream) const;
  // Return true if the latest record is done, or if there is none.
  bool query() const;
  // Wait for the latest record. Then raise, once, the first failure of earlier work that the
  // recording stream has not raised yet.
  void synchronize(Interruptible interruptible = Interruptible::No) const;
  // Do the same on a thread for which queued work waits, such as a group's thread.
  void synchronize_for_queued_work() const;
  // Wait without raising failures, for owners of memory. The user's next wait raises them.
  void drain() const;
  // Return the milliseconds from this event to `end`. Both must be recorded with
  // OB_EVENT_TIMING on one device.
  double elapsed_ms(const Event& end) const;
  // Return nanoseconds of CLOCK_MONOTONIC. The event must be a recorded timing event that is done.
  int64_t timestamp_ns() const;

 private:
  void reset() noexcept;
  void wait(Interruptible interruptible) const;
  void poll_until_done() const;
  void refuse_captured(const char* what) const;

  c10::DeviceIndex device_ = -1;
  uint32_t flags_;
  uint64_t handle_ = 0;
  StreamPosition before_;  // state before the latest record; its stream lives as long as the process
  std::unique_ptr<CaptureMark> mark_;  // the latest record, if it was on a capturing stream
};

}  // namespace outboard
