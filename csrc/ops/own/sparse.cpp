// SPDX-License-Identifier: BSD-3-Clause
// Sparse COO tensors: torch's handling for any device, and the chain
// for operators with CPU kernels.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_to_dense_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/zero_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "ops/boxed.h"
#include "ops/own/factories.h"

namespace outboard {

namespace {

// Torch makes sparse tensors on the current device, whatever device their parts are on.
using OptionalType = std::optional<at::ScalarType>;
using OptionalLayout = std::optional<at::Layout>;
using OptionalDevice = std::optional<at::Device>;

at::Tensor with_dims(int64_t sparse_dim, int64_t dense_dim, at::IntArrayRef size, OptionalType dtype,
                     OptionalLayout layout, OptionalDevice device, std::optional<bool> pin_memory) {
  const c10::OptionalDeviceGuard guard(device);
  return at::native::new_with_dims_sparse(sparse_dim, dense_dim, size, dtype, layout, device, pin_memory);
}

at::Tensor with_dims_and_tensors(int64_t sparse_dim, int64_t dense_dim, c10::SymIntArrayRef size,
                                 const at::Tensor& indices, const at::Tensor& values, OptionalType dtype,
                                 OptionalLayout layout, OptionalDevice device, std::optional<bool> pin_memory,
                                 std::optional<bool> is_coalesced) {
  const c10::DeviceGuard guard(values.device());
  return at::native::new_with_dims_and_tensor_sparse_symint(sparse_dim, dense_dim, size, indices, values, dtype, layout,
                                                            device, pin_memory, is_coalesced);
}

at::Tensor empty(at::IntArrayRef size, OptionalType dtype, OptionalLayout layout, OptionalDevice device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::native::empty_sparse(size, dtype, layout, device, pin_memory, memory_format);
}

at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> memory_format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::clone_sparse(self, memory_format);
}

// Register what torch's sparse tensors do on any device: their metadata, and
// operators composed of dense ones.
void register_metadata(torch::Library& aten) {
  aten.impl("_sparse_coo_tensor_with_dims", with_dims);
  aten.impl("_sparse_coo_tensor_with_dims_and_tensors", with_dims_and_tensors);
  aten.impl("empty.memory_format", empty);
  aten.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  aten.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  aten.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  aten.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  aten.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  aten.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  aten.impl("_values", TORCH_FN(at::native::_values_sparse));
  aten.impl("indices", TORCH_FN(at::native::indices_sparse));
  aten.impl("values", TORCH_FN(at::native::values_sparse));
  aten.impl("clone", clone);
  aten.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  aten.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  aten.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  aten.impl("zero_", TORCH_FN(at::native::zero_sparse_));
  aten.impl("_to_dense", TORCH_FN(at::native::sparse_to_dense));
}

}  // namespace

void register_sparse() {
  auto& aten =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  register_metadata(aten);
  // Composite kernels are written for dense tensors. Wherever the CPU has
  // a sparse kernel, register ours.
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (name.name.rfind("aten::", 0) == 0 && op && op->hasKernelForDispatchKey(c10::DispatchKey::SparseCPU) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::SparsePrivateUse1)) {
      aten.impl(operator_for(*op).name.c_str(), torch::CppFunction::makeFromBoxedFunction<&chain_fallback>());
    }
  }
}

}  // namespace outboard
