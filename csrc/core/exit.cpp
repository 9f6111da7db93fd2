// SPDX-License-Identifier: BSD-3-Clause
// The end of the process: the last wait for the devices, after which no driver entry is called.
#include "core/device.h"
#include "core/driver.h"
#include "core/pending.h"
#include "core/process.h"
#include "core/stream.h"

namespace outboard {

namespace {

// Wait at the end of the process. Return false if a signal ended the
// wait: the work may never be done.
bool drain_at_exit(c10::DeviceIndex device) noexcept {
  const ob_driver& t = driver();
  try {
    const TrackedWait waiting(t.device_synchronize ? "device_synchronize" : "stream_synchronize", device);
    detail::wait_interruptibly(device, Interruptible::Yes);
    if (t.device_synchronize == nullptr || is_unimplemented(t.device_synchronize(t.self, device))) {
      ob_status status = OB_OK;
      detail::for_each_created_stream(
          device,
          [](Stream& s, void* last) {
            if (auto& status = *static_cast<ob_status*>(last); status != OB_DEVICE_LOST) {
              status = driver().stream_synchronize(driver().self, s.device, s.handle);
            }
          },
          &status);
    }
  } catch (...) {
    return false;
  }
  return true;
}

}  // namespace

void shut_down() noexcept {
  if (driver_is_gone() || !is_attached()) {
    return;
  }
  drop_pending();
  bool all_closed = detail::wait_for_own_calls();
  for (int i = 0; i < device_count(); ++i) {
    const auto device = static_cast<c10::DeviceIndex>(i);
    if (!is_open(device)) {
      continue;
    }
    all_closed = false;  // live tensors may still point into its memory, which the end of the process frees
    // A failure cannot be reported any more. The only purpose of the wait is that no work is left
    // running.
    if (!drain_at_exit(device)) {
      break;
    }
  }
  detail::stop_reporting_waits();
  detail::begin_exit();
  if (all_closed && driver().destroy) {
    driver().destroy(driver().self);
  }
}

}  // namespace outboard
