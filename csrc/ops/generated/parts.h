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
// there are no parts for the operator or the arguments.
bool run_parts(const Call& call, torch::jit::Stack* stack);

// Return true if there are parts for some calls of the operator.
bool has_parts(const Operator& op);

}  // namespace outboard
