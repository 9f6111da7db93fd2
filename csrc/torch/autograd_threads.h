// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>

#include "core/export.h"

namespace outboard {

// Return true if a backward pass has run in this process, of any device: torch has counted devices then, and never does
// again. A pass on a device that it didn't count ends in an internal assertion.
OUTBOARD_API bool has_autograd_begun();

// Start autograd's threads for `devices` devices after that. Raises RegistrationError if there are threads for other
// devices, but fewer: their list can't grow while passes read it.
OUTBOARD_API void begin_autograd_threads(c10::DeviceIndex devices);

// Return when autograd's threads of the opened devices have let go of every finished backward pass, or after five
// seconds. Warn, and return at once, if the process can't have another thread. To be called before Python ends, without
// its lock.
OUTBOARD_API void drain_autograd_threads() noexcept;

}  // namespace outboard
