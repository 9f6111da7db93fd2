// SPDX-License-Identifier: BSD-3-Clause
// Corrections of the shape that a meta kernel returns, if the CPU's kernel returns another; rows of
// the book name them.
#pragma once

#include <ATen/core/stack.h>

namespace outboard {

struct CallShape;
struct Operator;

// Correct the shape of a call, if a correction is known.
void correct_shape(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);

void correct_convolution(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);
void correct_convolution_backward(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);
void correct_embedding_bag(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);
void correct_embedding_bag_forward_only(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);
void correct_flash_attention(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);
// Correct strides as element-wise kernels do: by the strides of all tensors, the first tensor
// taking precedence.
void correct_iterated(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);
void correct_roll(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);
void correct_statistics(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);
void correct_svd(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);

}  // namespace outboard
