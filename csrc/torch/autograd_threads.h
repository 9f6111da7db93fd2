// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>

#include "core/export.h"

namespace outboard {

// Return true if a backward pass has run in this process, on any device. Torch has counted
// the devices by then, and never counts again. A pass on a device that it did not count
// ends in an internal assertion.
OUTBOARD_API bool has_autograd_begun();

// Start autograd's threads for `devices` devices after a pass has run. Raise RegistrationError if
// fewer threads exist for other devices: the list of threads cannot grow while passes read it.
OUTBOARD_API void begin_autograd_threads(c10::DeviceIndex devices);

// In a forked child, start autograd's threads: torch's engine is new in the child, but if the
// parent ran a backward pass, the flag that its threads were started is inherited. Torch refuses
// backward passes in a child whose parent had such threads.
OUTBOARD_API void begin_autograd_after_fork();

// Return true while torch must count no devices on this thread.
bool hides_devices();

// Wait, at most five seconds, until autograd's threads for the opened devices have released every
// finished backward pass. If no thread can be started, warn and return at once. Call it before
// Python shuts down, without holding the interpreter lock.
OUTBOARD_API void drain_autograd_threads() noexcept;

}  // namespace outboard
