// SPDX-License-Identifier: BSD-3-Clause
// Attention and its gradients as products, sums and exponentials. For calls without a fused kernel
// although the fused operator was chosen (ops/own/attention.cpp), for example because a program
// does not compile.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Run aten::_scaled_dot_product_fused_attention_overrideable and its gradients; `results` receives
// their results. Return false for queries without batches of heads. Raise NotSupported for a call
// that drops weights.
bool compose_attention(const Call& call, torch::jit::Stack& results);
bool compose_attention_gradients(const Call& call, torch::jit::Stack& results);

}  // namespace outboard
