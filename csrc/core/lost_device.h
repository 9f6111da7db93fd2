// SPDX-License-Identifier: BSD-3-Clause
// For what gives something back. Uses of a lost device raise (`ensure_open`, `refuse_gone`); memory, graphs and programs
// that were there went with it, so that giving them back is done without a call.
#pragma once

#include "core/device.h"

namespace outboard {

inline bool is_lost(c10::DeviceIndex device) noexcept {
  return detail::device_state[device].load(std::memory_order_acquire) == DeviceState::Lost;
}

}  // namespace outboard
