// SPDX-License-Identifier: BSD-3-Clause
// Operator kernels that a driver brings in C.
#pragma once

#include <string>
#include <vector>

#include "core/export.h"

namespace outboard {
// Lets the driver register its kernels, if it has any.
void register_driver_kernels();

// The operators for which a kernel was registered, in C or not, sorted.
OUTBOARD_API std::vector<std::string> native_operators();
}  // namespace outboard
