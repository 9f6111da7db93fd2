// SPDX-License-Identifier: BSD-3-Clause
// Whether the driver was used. Until then, a second `install_driver` with the same name may have
// other options: its table replaces the first one, which is destroyed, and its kernels must be
// registered again.
#pragma once

#include "core/export.h"

namespace outboard {

// Return true if the driver has or may have opened anything: a device, or its runtime through a
// probe or device_properties.
OUTBOARD_API bool is_any_device_touched() noexcept;

// Return true if a probe or a query of properties may have opened the runtime.
bool has_runtime_opened() noexcept;

}  // namespace outboard
