// SPDX-License-Identifier: BSD-3-Clause
#include "core/trace.h"

namespace outboard::detail {

std::atomic<Trace*> active_trace{nullptr};

}  // namespace outboard::detail
