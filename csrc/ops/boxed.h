// SPDX-License-Identifier: BSD-3-Clause
// The boxed kernel that tries the providers in turn.
#pragma once

#include <ATen/core/stack.h>

#include "ops/operator/operator.h"

namespace outboard {

// Run a call by the first provider that takes it: the native kernel, a view, generated
// kernels, the host, the fallback.
void run_chain(Operator& op, torch::jit::Stack* stack);

// Run the chain, for every operator without a kernel for the device.
void chain_fallback(const c10::OperatorHandle& handle, torch::jit::Stack* stack);

// Install the chain for an operator that would otherwise use a composite kernel. Installs once, and
// never over a registered kernel.
void install_chain(Operator& op);

}  // namespace outboard
