// SPDX-License-Identifier: BSD-3-Clause
// For the provider 'compiled', operators that are made of operators for which kernels can be generated: those whose
// results' sizes are told by values, such as nonzero, where the caller waits for a count, as it does anywhere; cat of many
// tensors, a copy of lists; and attention that has no kernels of the whole.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Replaces the arguments on the stack by the results. False, with the stack as it was, for an operator or arguments for
// which there are no parts.
bool run_parts(const Call& call, torch::jit::Stack* stack);

}  // namespace outboard
