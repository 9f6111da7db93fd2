// SPDX-License-Identifier: BSD-3-Clause
// Operators that the provider 'generated' builds from operators with generated kernels.
// Four kinds: operators whose results' sizes depend on values, such as nonzero, where the
// caller waits for a count, as on any device; cat of many tensors, as a copy of lists;
// attention without kernels of the whole; and factors of matrices that raise errors of values.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Replace the arguments on the stack by the results. Return false, with the stack unchanged, if
// neither the operator nor such arguments are composed of others.
bool run_composed(const Call& call, torch::jit::Stack* stack);

// Return true if some calls of the operator are composed of others.
bool is_composed(const Operator& op);

}  // namespace outboard
