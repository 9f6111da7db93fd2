// SPDX-License-Identifier: BSD-3-Clause
// Devices: opened late, once, by a state machine (no lock is held while the driver opens), and the thread's current
// device. Attaching, counting and selecting a device open nothing.
#pragma once

#include <c10/core/Device.h>
#include <c10/macros/Macros.h>
#include <torch_outboard/driver.h>

#include <atomic>
#include <string>

#include "core/driver.h"
#include "core/export.h"
#include "core/wait.h"

namespace outboard {

enum class DeviceState : uint8_t { Closed, Opening, Open, Lost, Forked };

namespace detail {
OUTBOARD_API extern std::atomic<DeviceState> device_state[kMaxDevices];
OUTBOARD_API void open_device(c10::DeviceIndex device);  // raises unless the device is open afterwards
}  // namespace detail

// Raises torch.AcceleratorError, as CUDA does, for an index that is out of range ("device index 7 …, there are 2").
[[noreturn]] OUTBOARD_API void raise_bad_device(int64_t device);
OUTBOARD_API void check_device_index(c10::DeviceIndex device);

inline bool is_open(c10::DeviceIndex device) noexcept {
  return detail::device_state[device].load(std::memory_order_acquire) == DeviceState::Open;
}

// Opens the device if it isn't; to be called before any entry that names it. The index must be in range.
// Raises in a forked child, after the device was lost, and when opening fails (the next call tries again).
inline void ensure_open(c10::DeviceIndex device) {
  if (C10_UNLIKELY(!is_open(device))) {
    detail::open_device(device);
  }
}

// Raises if the device was lost, or opened before a fork; opens nothing.
inline void refuse_gone(c10::DeviceIndex device) {
  const DeviceState state = detail::device_state[device].load(std::memory_order_acquire);
  if (C10_UNLIKELY(state == DeviceState::Lost || state == DeviceState::Forked)) {
    detail::open_device(device);
  }
}

// Whether any device was opened in this process.
OUTBOARD_API bool any_device_opened() noexcept;

// Called by raise_status for OB_DEVICE_LOST: later uses of the device raise with this first cause, and no entry is
// called for it any more.
OUTBOARD_API void mark_lost(c10::DeviceIndex device, const std::string& cause) noexcept;

// Cached after the first call, which may open the runtime and so counts as a use: a child that forks after it is refused.
// Raises on failure.
OUTBOARD_API const ob_device_properties& device_properties(c10::DeviceIndex device);

// Free and total bytes; opens the device.
OUTBOARD_API void mem_info(c10::DeviceIndex device, uint64_t* out_free, uint64_t* out_total);

// 1 if the driver copies between the two without the host; asked once a pair. Opens both.
OUTBOARD_API bool can_access_peer(c10::DeviceIndex device, c10::DeviceIndex peer);

// The thread's current device; 0 at first. Setting it opens nothing; set_device checks the index.
OUTBOARD_API c10::DeviceIndex current_device() noexcept;
OUTBOARD_API void set_device(c10::DeviceIndex device);
OUTBOARD_API void set_device_unchecked(c10::DeviceIndex device) noexcept;
OUTBOARD_API c10::DeviceIndex exchange_device(c10::DeviceIndex device);

// Waits for all work of the device and raises the first failure of it. Does nothing on a device that is not open.
OUTBOARD_API void synchronize_device(c10::DeviceIndex device, Leave leave = Leave::Never);

// Only waits, also while streams of it capture: for what the driver was given before. What the work has failed with is
// left to the next wait that is a user's. For what owns memory.
OUTBOARD_API void drain_device(c10::DeviceIndex device);
// The same for each device that is open.
OUTBOARD_API void drain_all_devices();

// What runs after each wait for a stream or a device, with the device's index: upper layers settle there what could not
// be done, or could not be reported, when it happened. It may raise.
using AfterWait = void (*)(c10::DeviceIndex device);
OUTBOARD_API void set_after_wait(AfterWait hook);
namespace detail {
void after_wait(c10::DeviceIndex device);
// Around a fork, so that the child finds the states of the devices whole.
void lock_devices() noexcept;
void unlock_devices() noexcept;
bool any_device_opening() noexcept;  // with them locked
}  // namespace detail

// Closes every open device at a clean end: called by the bindings' atexit, with nothing left to run afterwards.
OUTBOARD_API void shut_down() noexcept;

}  // namespace outboard
