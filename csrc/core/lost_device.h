// SPDX-License-Identifier: BSD-3-Clause
// Releasing resources of a lost device. Uses of a lost device raise (`ensure_open`,
// `ensure_usable`). Its memory, graphs and programs are gone with it, so releasing them calls no
// entry.
#pragma once

#include "core/device.h"

namespace outboard {

inline bool is_lost(c10::DeviceIndex device) noexcept {
  return detail::device_state[device].load(std::memory_order_acquire) == DeviceState::Lost;
}

}  // namespace outboard
