// SPDX-License-Identifier: BSD-3-Clause
#include "ops/tensors/host_view.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "core/capture.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/stream.h"
#include "core/sync_debug.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

at::Tensor view_at(const at::Tensor& tensor, void* data) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  auto keeper = std::make_unique<c10::Storage>(tensor.storage());
  c10::DataPtr pointer(
      data, keeper.get(), [](void* kept) { delete static_cast<c10::Storage*>(kept); }, c10::Device(c10::kCPU));
  static_cast<void>(keeper.release());
  c10::Storage storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(), std::move(pointer), nullptr, /*resizable=*/false);
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                             c10::DispatchKeySet(c10::DispatchKey::CPU), impl.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(impl.sizes(), impl.strides(), impl.storage_offset());
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

}  // namespace

bool is_host_reachable(const at::Tensor& tensor) {
  void* data = nullptr;
  return driver().host_address && storage_host_address(tensor.storage(), &data);
}

at::Tensor host_view_without_wait(const at::Tensor& tensor) {
  void* data = nullptr;
  TORCH_INTERNAL_ASSERT(storage_host_address(tensor.storage(), &data));
  return view_at(tensor, data);
}

at::Tensor host_view(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  TORCH_CHECK_VALUE(is_device_tensor(impl), "host_view takes a tensor of '", driver_name(), "', got one on ",
                    tensor.device());
  TORCH_CHECK_VALUE(tensor.layout() == c10::kStrided, "host_view takes a dense tensor, got ", tensor.layout());
  TORCH_CHECK(!tensor.requires_grad(), "host_view() does not take a tensor that requires grad: use tensor.detach()");
  const c10::DeviceIndex device = tensor.device().index();
  ensure_open(device);
  Stream& stream = current_stream(device);
  refuse_in_capture(stream, "host_view(), which waits,");
  note_sync("host_view()");
  void* data = nullptr;
  if (!driver().host_address || !storage_host_address(tensor.storage(), &data)) {
    raise_not_supported("host_address", "a view of the device's memory on the host, which cannot reach it,");
  }
  synchronize_stream(stream);
  return view_at(tensor, data);
}

}  // namespace outboard
