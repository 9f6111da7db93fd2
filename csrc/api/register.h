// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "core/export.h"

namespace outboard {

// Register the guard, the allocators, the hooks, the generator and the operators with torch,
// permanently. Call it once, after install_driver and torch.utils.rename_privateuse1_backend.
OUTBOARD_API void register_with_torch();

}  // namespace outboard
