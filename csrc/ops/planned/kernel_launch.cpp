// SPDX-License-Identifier: BSD-3-Clause
#include "ops/planned/kernel_launch.h"

#include <cstddef>
#include <cstring>

#include "core/driver.h"
#include "core/queue.h"
#include "ops/call/transfer.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

using kernels::ArgumentKind;

void copy_scalar(const std::string& kernel, ArgumentKind kind, const at::Tensor& tensor, void* out_scalar) {
  const bool is_written = kind == ArgumentKind::Written;
  TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.numel() == 1 && !is_written, "the compiled kernel ", kernel, " ",
                    is_written ? "writes" : "reads", " a tensor of ", tensor.numel(), " elements on ", tensor.device(),
                    ". A kernel reads and writes tensors of '", driver_name(),
                    "', and also reads CPU tensors of one element");
  std::memcpy(out_scalar, tensor.const_data_ptr(), tensor.itemsize());
}

void KernelLaunch::add(const at::Tensor& tensor) {
  const ArgumentKind kind = kernel_.passed()[words_.size()];
  if (kind == ArgumentKind::Scalar) {
    uint64_t bits = 0;
    TORCH_CHECK_VALUE(tensor.itemsize() <= sizeof bits, "the compiled kernel ", kernel_.name(),
                      " takes elements of at most ", sizeof bits, " bytes by value, got ", tensor.itemsize(), " bytes");
    copy_scalar(kernel_.name(), kind, tensor, &bits);
    words_.push_back(bits);
  } else if (C10_LIKELY(is_device_tensor(*tensor.unsafeGetTensorImpl()))) {
    words_.push_back(device_address(tensor));
    uses_.add(tensor, kind == ArgumentKind::Written);
  } else {
    moved_.push_back(on_device(kind, tensor));
    words_.push_back(device_address(moved_.back()));
  }
}

at::Tensor KernelLaunch::on_device(ArgumentKind kind, const at::Tensor& tensor) {
  alignas(kScalarBytes) std::byte scalar[kScalarBytes];
  copy_scalar(kernel_.name(), kind, tensor, scalar);
  at::Tensor moved = make_device_tensor(stream_, tensor.scalar_type(), tensor.sizes(), tensor.strides());
  if (!queue_fill(stream_, reinterpret_cast<uint64_t>(moved.storage().data()), scalar,
                  static_cast<uint32_t>(tensor.itemsize()), 1)) {
    host_to_dense(tensor, moved);
  }
  return moved;
}

void KernelLaunch::queue(const kernels::LaunchSizes& sizes) {
  uses_.report(kernel_.name().c_str());
  kernel_.launch(stream_, words_, sizes);
}

}  // namespace outboard
