// SPDX-License-Identifier: BSD-3-Clause
// Views: memory of an argument under other metadata. No kernel runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// The memory of `base` with the dtype, sizes, strides, offset and lazy bits of `like`, whose storage stands for base's:
// it begins where that one does.
at::Tensor view_of(const at::Tensor& base, const at::Tensor& like);

// Runs a view operator by its meta kernel, which is given the arguments' storages, offsets, sizes and strides, and
// replaces the arguments on the stack by the views. False, with the stack untouched, if there is no meta kernel, or it
// makes tensors of its own and so doesn't tell what memory they show.
bool run_as_view(const Call& call, torch::jit::Stack* stack);

}  // namespace outboard
