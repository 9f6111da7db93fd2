// SPDX-License-Identifier: BSD-3-Clause
// Autocast's casts, for operators that cast by themselves. Separate, because ATen/autocast_mode.h
// includes all of ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace outboard {

// Return the dtype that operators of lower precision run in, if autocast is enabled for the device.
std::optional<at::ScalarType> autocast_dtype();

// Cast the tensor like the inputs of these operators: tensors on other devices and of other kinds
// are unchanged, and a parameter is cast once per region. `tensor` must be defined.
at::Tensor autocast_cast(at::ScalarType dtype, const at::Tensor& tensor);

}  // namespace outboard
