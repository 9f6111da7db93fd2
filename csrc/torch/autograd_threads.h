// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>

#include "core/export.h"

namespace outboard {

// Return true if a backward pass has run in this process, on any device. Torch has counted
// the devices by then, and never counts again. A pass on a device that it did not count
// ends in an internal assertion.
OUTBOARD_API bool has_autograd_begun();

// Start autograd's threads for `devices` devices after that. Raise RegistrationError if fewer
// threads exist for other devices: their list cannot grow while passes read it.
OUTBOARD_API void begin_autograd_threads(c10::DeviceIndex devices);

// In a forked child, start autograd's threads: torch's engine is new in the child, but what
// remembers that it has started its threads is not, if the parent had run a backward pass. Torch
// refuses the passes of a child whose parent had such threads.
OUTBOARD_API void begin_autograd_after_fork();

// Return true while torch is to count no devices on this thread.
bool hides_devices();

// Wait until autograd's threads of the opened devices have released every finished backward pass,
// at most five seconds. If no thread can be started, warn and return at once. Call it before
// Python ends, without its lock.
OUTBOARD_API void drain_autograd_threads() noexcept;

}  // namespace outboard
