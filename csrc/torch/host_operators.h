// SPDX-License-Identifier: BSD-3-Clause
// Reports accesses of host operators to pinned memory to the observer of streams.
#pragma once

#include "core/export.h"

namespace outboard {

// Start or stop reporting each operator on CPU tensors in pinned memory to the observer. Copies
// from and to a device are not reported here.
OUTBOARD_API void watch_host_operators(bool is_watching);

}  // namespace outboard
