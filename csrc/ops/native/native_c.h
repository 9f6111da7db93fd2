// SPDX-License-Identifier: BSD-3-Clause
// A driver's own operator kernels in C.
#pragma once

#include <string>
#include <vector>

#include "core/driver.h"
#include "core/export.h"
#include "ops/operator/api.h"

namespace outboard {
// Return a driver's kernel in the form that the chain calls.
NativeKernel driver_kernel(ob_operator_fn fn, void* user);

// Return the operators for which a kernel was registered, in C or not, sorted.
OUTBOARD_API std::vector<std::string> native_operators();
}  // namespace outboard
