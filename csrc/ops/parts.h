// SPDX-License-Identifier: BSD-3-Clause
// Operators whose results' sizes are told by values, such as nonzero, for the provider 'compiled': made of operators for
// which kernels can be generated. The caller waits for a count, as it does anywhere.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call.h"

namespace outboard {

// Replaces the arguments on the stack by the results. False, with the stack as it was, for an operator or arguments for
// which there are no parts.
bool run_parts(const Call& call, torch::jit::Stack* stack);

}  // namespace outboard
