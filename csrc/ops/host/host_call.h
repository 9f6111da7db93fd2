// SPDX-License-Identifier: BSD-3-Clause
// Runs an operator's CPU kernel on device memory, in stream order.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Run the call with the CPU kernel in its device's current stream, and replace the arguments on the
// stack by the results. The call is queued if the results' shapes are known; otherwise the caller
// waits. Return false, with the stack untouched, if the host cannot reach the memory of an
// argument, or may not run operators (ops/providers.h).
bool run_on_host(const Call& call, torch::jit::Stack* stack);

}  // namespace outboard
