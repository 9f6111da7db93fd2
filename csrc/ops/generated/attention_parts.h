// SPDX-License-Identifier: BSD-3-Clause
// Attention as a whole, and its gradients, made of products, sums and exponentials: for calls that have no kernels of the
// whole though it was chosen (ops/own/attention.cpp), as where a program doesn't compile.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Of aten::_scaled_dot_product_fused_attention_overrideable and its gradients, with what they return. False for a call that
// drops weights, or wants the gradient of a mask.
bool attention_in_parts(const Call& call, torch::jit::Stack& results);
bool attention_gradients_in_parts(const Call& call, torch::jit::Stack& results);

}  // namespace outboard
