// SPDX-License-Identifier: BSD-3-Clause
// Sparse COO tensors: dense indices and values on the device, which CPU
// kernels see as a CPU sparse tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace outboard {

bool is_sparse_coo(const at::Tensor& tensor);

// Return a sparse tensor of the same kind with `convert` applied to indices and values.
at::Tensor convert_sparse(const at::Tensor& sparse, const std::function<at::Tensor(const at::Tensor&)>& convert);

// Update `sparse` from `converted` after a kernel ran, if `converted` differs from the
// indices and values that it had.
void write_back_sparse(const at::Tensor& sparse, const at::Tensor& converted,
                       const std::function<at::Tensor(const at::Tensor&)>& convert_back);

}  // namespace outboard
