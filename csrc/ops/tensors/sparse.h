// SPDX-License-Identifier: BSD-3-Clause
// Sparse COO tensors: dense indices and values on the device, which CPU kernels see as a CPU sparse tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace outboard {

bool is_sparse_coo(const at::Tensor& tensor);

// A sparse tensor of the same kind over other indices and values: `convert` is applied to both.
at::Tensor convert_sparse(const at::Tensor& sparse, const std::function<at::Tensor(const at::Tensor&)>& convert);

// Makes `sparse` what a kernel left in `converted`, if that differs from the indices and values it was given.
void write_back_sparse(const at::Tensor& sparse, const at::Tensor& converted,
                       const std::function<at::Tensor(const at::Tensor&)>& convert_back);

}  // namespace outboard
