// SPDX-License-Identifier: BSD-3-Clause
// Events that the host completes: a stream waits for the host, and no thread blocks.
#pragma once

#include <torch_outboard/driver.h>

#include <atomic>
#include <cstdint>
#include <exception>

#include "core/export.h"
#include "core/stream.h"

namespace outboard {

// Work on the host that a stream waits for. It counts as work of the stream: waits for later work
// raise its failure. Thread-safe.
class OUTBOARD_API HostEvent {
 public:
  // Return true if streams of this driver can wait for the host.
  static bool is_supported() noexcept { return driver().event_signal != nullptr; }

  explicit HostEvent(Stream& stream);
  // Calls no driver entry. The driver's event is destroyed when the device's next event is made;
  // this releases streams that still wait for it.
  ~HostEvent();
  HostEvent(const HostEvent&) = delete;
  HostEvent& operator=(const HostEvent&) = delete;

  // Queue the wait, before or after the event is signalled. `name` is for reports of long waits,
  // and lives as long as the process. Raise CaptureError on a capturing stream.
  void block(const char* name);
  // Store the work's failure, which may be null, then let the stream continue. Only the first call
  // has an effect. If the driver fails, the stream still continues, and this call and waits for the
  // stream raise the driver's error.
  void signal(std::exception_ptr error);

 private:
  Stream& stream_;
  const WorkPosition position_;
  uint64_t handle_ = 0;
  std::atomic<bool> is_signalled_{false};
  std::atomic<bool> is_destroyed_{false};  // after a signal that failed
};

}  // namespace outboard
