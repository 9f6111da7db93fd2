// SPDX-License-Identifier: BSD-3-Clause
// Devices, and the thread's current device. A state machine opens each device once, on
// first use, and holds no lock while the driver opens it. Attaching, counting and
// selecting a device open nothing.
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

// Return "mychip:0", for messages.
OUTBOARD_API std::string device_text(c10::DeviceIndex device);

// Raise torch.AcceleratorError for an index out of range, as CUDA does
// ("device index 7 …, there are 2").
[[noreturn]] OUTBOARD_API void raise_bad_device(int64_t device);
OUTBOARD_API void check_device_index(c10::DeviceIndex device);

inline bool is_open(c10::DeviceIndex device) noexcept {
  return detail::device_state[device].load(std::memory_order_acquire) == DeviceState::Open;
}

// Open the device if it is closed. Call it before any entry that names the device. The
// index must be in range. Raise in a forked child, if the device was lost, and if opening
// fails (the next call tries again).
inline void ensure_open(c10::DeviceIndex device) {
  if (C10_UNLIKELY(!is_open(device))) {
    detail::open_device(device);
  }
}

// Raise if the device was lost, or was opened before a fork. Open nothing.
inline void ensure_usable(c10::DeviceIndex device) {
  const DeviceState state = detail::device_state[device].load(std::memory_order_acquire);
  if (C10_UNLIKELY(state == DeviceState::Lost || state == DeviceState::Forked)) {
    detail::open_device(device);
  }
}

// Return true if any device was opened in this process.
OUTBOARD_API bool any_device_opened() noexcept;

// Mark the device as lost: later uses raise with this first cause, and no entry is called for it.
// raise_status calls this for OB_DEVICE_LOST.
OUTBOARD_API void mark_lost(c10::DeviceIndex device, const std::string& cause) noexcept;

// Return the device's properties, which are cached after the first call. The first call may open
// the runtime, so it counts as a use: a child forked after it is refused. Raise on failure.
OUTBOARD_API const ob_device_properties& device_properties(c10::DeviceIndex device);

// Return the free and total bytes. Open the device.
OUTBOARD_API void mem_info(c10::DeviceIndex device, uint64_t* out_free, uint64_t* out_total);

// Return true if the driver copies between the two devices without the host. The driver is queried
// once per pair. Opens both devices.
OUTBOARD_API bool can_access_peer(c10::DeviceIndex device, c10::DeviceIndex peer);

// Return the thread's current device, 0 at first. Setting it opens
// nothing; set_device checks the index.
OUTBOARD_API c10::DeviceIndex current_device() noexcept;
OUTBOARD_API void set_device(c10::DeviceIndex device);
OUTBOARD_API void set_device_unchecked(c10::DeviceIndex device) noexcept;
OUTBOARD_API c10::DeviceIndex exchange_device(c10::DeviceIndex device);

// Wait for all work of the device, then raise its first failure. Do
// nothing if the device is not open.
OUTBOARD_API void synchronize_device(c10::DeviceIndex device, Interruptible interruptible = Interruptible::No);

// Wait without raising the work's failures, for owners of memory. While streams of the device are
// capturing, wait for the work that was queued before the capture. The user's next wait raises the
// failures.
OUTBOARD_API void drain_device(c10::DeviceIndex device);
// Do the same for every open device.
OUTBOARD_API void drain_all_devices();

// A function that runs after each wait for a stream or a device, with the device's index. Upper
// layers use it to finish work and errors that were deferred. It may raise.
using AfterWait = void (*)(c10::DeviceIndex device);
OUTBOARD_API void set_after_wait(AfterWait hook);
// A function that runs after a device was opened, on the thread that opened it. It may raise.
using AfterOpen = void (*)();
OUTBOARD_API void set_after_open(AfterOpen hook);
namespace detail {
void after_wait(c10::DeviceIndex device);
// Lock and unlock the devices around a fork, so that their states are consistent in the child.
void lock_devices() noexcept;
void unlock_devices() noexcept;
bool any_device_opening() noexcept;  // call with the devices locked
}  // namespace detail

// Close every open device at a clean exit. The bindings' atexit handler
// calls it; nothing runs afterwards.
OUTBOARD_API void shut_down() noexcept;

}  // namespace outboard
