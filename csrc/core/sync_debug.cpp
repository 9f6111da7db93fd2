// SPDX-License-Identifier: BSD-3-Clause
#include "core/sync_debug.h"

#include <c10/util/Exception.h>

#include <string>

#include "core/driver.h"

namespace outboard {

namespace detail {

std::atomic<SyncDebugMode> sync_debug_mode_{SyncDebugMode::Default};

void report_sync(const char* what) {
  const std::string text =
      c10::str("called a synchronizing operation of ", driver_name(), ": ", what, " waits for the device");
  TORCH_CHECK(sync_debug_mode() != SyncDebugMode::Error, text, ". torch.", driver_name(),
              ".set_sync_debug_mode(\"error\") forbids it");
  TORCH_WARN(text);
}

}  // namespace detail

void set_sync_debug_mode(SyncDebugMode mode) noexcept {
  detail::sync_debug_mode_.store(mode, std::memory_order_relaxed);
}

SyncDebugMode sync_debug_mode() noexcept {
  return detail::sync_debug_mode_.load(std::memory_order_relaxed);
}

}  // namespace outboard
