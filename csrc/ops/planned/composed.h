// SPDX-License-Identifier: BSD-3-Clause
// Operators that the provider 'generated' builds from operators with generated kernels. There are
// four kinds: operators whose results' sizes depend on values, such as nonzero, for which the
// caller waits for a count, as on any device; cat of many tensors, as a copy of lists; attention
// without a fused kernel; and matrix factorizations that raise value errors.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Replace the arguments on the stack by the results. Return false, with the stack unchanged, if
// calls of the operator, or with such arguments, are not composed.
bool run_composed(const Call& call, torch::jit::Stack* stack);

// Return true if some calls of the operator are composed from other operators.
bool is_composed(const Operator& op);

}  // namespace outboard
