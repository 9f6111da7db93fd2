// SPDX-License-Identifier: BSD-3-Clause
// The last provider: copy the arguments to the CPU, run there, copy the results back.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Runs the call on copies and replaces the arguments on the stack by the results. Warns once a process, counts, or
// raises, as set_fallback_mode says.
void run_on_copies(const Call& call, torch::jit::Stack* stack);

// Whether set_fallback_mode makes copies to the CPU an error.
bool forbids_copies();

// Raises, if set_fallback_mode says so, and counts: for copies within a device that go through the host.
void report_fallback(Operator& op);

}  // namespace outboard
