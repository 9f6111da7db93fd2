// SPDX-License-Identifier: BSD-3-Clause
// From what a call's CPU kernel gave to what the operator returns.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call.h"

namespace outboard {

// Resizes an `out=` argument as torch does, with its warning if it wasn't empty.
void resize_output(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides);

// Replaces the arguments on the stack by the call's results: written arguments, and `outputs` in their order.
void return_results(const Call& call, const CallShape& shape, c10::ArrayRef<at::Tensor> outputs,
                    torch::jit::Stack* stack);

// The same for a call that was waited for: `returned` is what the CPU kernel gave when called with `shells` (or
// copies). Results that are shells become the arguments behind them, views of shells become views of the arguments,
// fresh results are copied to the device. A written argument whose shell was resized or moved is resized and copied.
void adopt_results(const Call& call, const torch::jit::Stack& shells, const torch::jit::Stack& returned,
                   torch::jit::Stack* stack);

}  // namespace outboard
