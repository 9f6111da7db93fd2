// SPDX-License-Identifier: BSD-3-Clause
// The last provider: copy the arguments to the CPU, run there, copy the results back.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Run the call on copies, and replace the arguments on the stack by the results. Count the call,
// and warn once per process or raise, according to set_fallback_mode.
void run_on_copies(const Call& call, torch::jit::Stack* stack);

// Return true if set_fallback_mode makes copies to the CPU an error.
bool forbids_copies();

// Count a copy within a device that goes through the host. Raise if set_fallback_mode forbids it.
void report_fallback(Operator& op);

}  // namespace outboard
