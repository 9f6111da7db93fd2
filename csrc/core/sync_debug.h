// SPDX-License-Identifier: BSD-3-Clause
// Reports operations in which the host waits for the device, like torch.cuda.set_sync_debug_mode.
// Explicit waits for a device or an event are not reported.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/export.h"

namespace outboard {

enum class SyncDebugMode : uint8_t { Default = 0, Warn = 1, Error = 2 };

OUTBOARD_API void set_sync_debug_mode(SyncDebugMode mode) noexcept;
OUTBOARD_API SyncDebugMode sync_debug_mode() noexcept;

namespace detail {
OUTBOARD_API extern std::atomic<SyncDebugMode> sync_debug_mode_;
void report_sync(const char* what);
}  // namespace detail

// Report an operation that will wait, before it queues anything: in mode Error this
// raises. `what` names the operation.
inline void note_sync(const char* what) {
  if (detail::sync_debug_mode_.load(std::memory_order_relaxed) != SyncDebugMode::Default) [[unlikely]] {
    detail::report_sync(what);
  }
}

}  // namespace outboard
