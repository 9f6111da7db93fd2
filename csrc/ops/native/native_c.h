// SPDX-License-Identifier: BSD-3-Clause
// A driver's own operator kernels in C.
#pragma once

#include <string>
#include <vector>

#include "core/driver.h"
#include "core/export.h"
#include "ops/operator/api.h"

namespace outboard {
// A kernel of the driver's as the chain calls it.
NativeKernel driver_kernel(ob_operator_fn fn, void* user);

// The operators for which a kernel was registered, in C or not, sorted.
OUTBOARD_API std::vector<std::string> native_operators();
}  // namespace outboard
