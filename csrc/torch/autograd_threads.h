// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "core/export.h"

namespace outboard {

// Return when autograd's threads of the opened devices have let go of every finished backward pass, or after five
// seconds. Warn, and return at once, if the process can't have another thread. To be called before Python ends, without
// its lock.
OUTBOARD_API void drain_autograd_threads() noexcept;

}  // namespace outboard
