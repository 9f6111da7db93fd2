// SPDX-License-Identifier: BSD-3-Clause
// Run an operator's CPU kernel on device memory, in its stream.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Runs the call by the CPU kernel in the current stream of its device and replaces the arguments on the stack by the
// results. Queued if its results' shapes are known, else the caller waits. False, with the stack untouched, if the
// host cannot reach the memory of an argument, or may not run operators (ops/providers.h).
bool run_on_host(const Call& call, torch::jit::Stack* stack);

}  // namespace outboard
