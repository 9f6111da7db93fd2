// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "core/export.h"

namespace outboard {

// Registers the guard, the allocators, the hooks, the generator and the operators with torch, for good. To be called
// once, after install_driver and after torch.utils.rename_privateuse1_backend.
OUTBOARD_API void register_with_torch();

}  // namespace outboard
