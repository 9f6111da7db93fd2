// SPDX-License-Identifier: BSD-3-Clause
// Failures of calls whose work has its own name.
#pragma once

#include <torch_outboard/driver.h>

#include <string>

#include "core/export.h"

namespace outboard {

// Like raise_status of core/error.h, but with the purpose of the call in the message: "driver 'x':
// kernel_launch (add) on device 0 failed …". `what` may be empty.
[[noreturn]] OUTBOARD_API void raise_status_of(const std::string& what, ob_status status, const char* entry,
                                               int device);
// Return the message of that error.
OUTBOARD_API std::string describe_status(const std::string& what, ob_status status, const char* entry, int device);

}  // namespace outboard
