// SPDX-License-Identifier: BSD-3-Clause
#include "ops/tensors/shell.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

c10::Storage wrap(void* data, size_t nbytes, bool is_resizable) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, c10::DataPtr(data, c10::Device(c10::DeviceType::CPU)),
      is_resizable ? c10::GetAllocator(c10::DeviceType::CPU) : nullptr, is_resizable);
}

// Copy the lazy bits, which apply to a tensor's values beside its memory.
void copy_bits(const c10::TensorImpl& like, c10::TensorImpl& shell) {
  if (C10_UNLIKELY(like.is_wrapped_number())) {
    shell.set_wrapped_number(true);
  }
  if (C10_UNLIKELY(like.is_conj())) {
    shell._set_conj(true);
  }
  if (C10_UNLIKELY(like.is_neg())) {
    shell._set_neg(true);
  }
}

}  // namespace

at::Tensor make_shell(c10::Storage storage, const c10::TensorImpl& like) {
  at::Tensor shell = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                              c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  c10::TensorImpl* impl = shell.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  copy_bits(like, *impl);
  return shell;
}

at::Tensor ShellMaker::make(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::Storage& storage = impl.unsafe_storage();
  const c10::StorageImpl* key = storage.unsafeGetStorageImpl();
  for (const auto& [known, shell_storage] : storages_) {
    if (known == key) {
      return make_shell(shell_storage, impl);
    }
  }
  void* data = nullptr;
  if (C10_UNLIKELY(!storage_host_address(storage, &data))) {
    is_reachable_ = false;
    return {};
  }
  c10::Storage shell_storage = wrap(data, key->nbytes(), is_resizable_);
  storages_.emplace_back(key, shell_storage);
  return make_shell(std::move(shell_storage), impl);
}

at::Tensor copy_shell(const at::Tensor& shell) {
  return make_shell(shell.storage(), *shell.unsafeGetTensorImpl());
}

at::Tensor make_cpu_view(void* data, size_t nbytes, c10::TensorImpl& like) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(wrap(data, nbytes, /*is_resizable=*/false),
                                                             c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  c10::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  copy_bits(like, *impl);
  return view;
}

}  // namespace outboard
