// SPDX-License-Identifier: BSD-3-Clause
// Views: memory of an argument under other metadata. No kernel runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Return the memory of `base` with the dtype, sizes, strides, offset and lazy bits of `like`. The
// storage of `like` stands for the storage of `base`: both begin at the same byte.
at::Tensor view_of(const at::Tensor& base, const at::Tensor& like);

// Run a view operator's meta kernel on the arguments' storages, offsets, sizes and strides. The
// views replace the arguments on the stack. Return false, with the stack untouched, if there is no
// meta kernel, or if it creates new tensors, from which the viewed memory is not known.
bool run_as_view(const Call& call, torch::jit::Stack* stack);

}  // namespace outboard
