// SPDX-License-Identifier: BSD-3-Clause
// What operators of the host do to pinned memory, for the observer of streams.
#pragma once

#include "core/export.h"

namespace outboard {

// Report to the observer each operator on CPU tensors in pinned memory; end it with false. Copies
// from and to a device are not such operators.
OUTBOARD_API void watch_host_operators(bool is_watching);

}  // namespace outboard
