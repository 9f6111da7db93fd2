// SPDX-License-Identifier: BSD-3-Clause
#include "ops/tensors/tensor_utils.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <utility>

#include "core/device.h"
#include "memory/caching_allocator.h"

namespace outboard {

namespace {

// Issue the warnings of torch's own allocations: complex halves are experimental.
void warn_of_dtype(c10::ScalarType dtype) {
  if (C10_UNLIKELY(dtype == c10::kComplexHalf)) {
    at::detail::empty_cpu({0}, dtype);  // torch warns once a process
  }
}

}  // namespace

at::Tensor make_device_tensor(Stream& stream, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              size_t nbytes) {
  warn_of_dtype(dtype);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                       allocate(stream, nbytes), &device_allocator(),
                                                       /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor make_device_tensor(Stream& stream, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return make_device_tensor(stream, dtype, sizes, strides, span_bytes(sizes, strides, c10::elementSize(dtype)));
}

at::Tensor flat_view(const at::Tensor& of, int64_t offset, int64_t length) {
  constexpr int64_t kStep = 1;
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(of.storage()),
                                                             of.key_set(), of.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(length), c10::IntArrayRef(kStep),
                                                    of.storage_offset() + offset);
  return view;
}

size_t span_bytes(c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t element_size, int64_t offset) {
  return at::detail::computeStorageNbytes(sizes, strides, element_size, static_cast<size_t>(offset));
}

ObservedAccess access_to(const at::Tensor& tensor, bool is_write) {
  const uint64_t element = tensor.element_size();
  ObservedAccess access{reinterpret_cast<uint64_t>(tensor.storage().data()),
                        offset_bytes(*tensor.unsafeGetTensorImpl()),
                        span_bytes(tensor.sizes(), tensor.strides(), element),
                        0,
                        0,
                        is_write};
  c10::SmallVector<std::pair<uint64_t, uint64_t>, 5> dims;  // strides in bytes, sizes
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) > 0) {
      dims.emplace_back(static_cast<uint64_t>(tensor.stride(i)) * element, static_cast<uint64_t>(tensor.size(i)));
    }
  }
  std::sort(dims.begin(), dims.end());
  uint64_t width = element;
  for (const auto& [stride, size] : dims) {
    if (access.pitch == 0 && stride <= width) {  // adjacent, or overlapping
      width = stride * (size - 1) + width;
    } else if (access.pitch == 0) {
      access.pitch = stride;
    } else if (stride % access.pitch != 0) {
      access.pitch = 0;
      return access;
    }
  }
  access.width = access.pitch != 0 ? width : 0;
  return access;
}

bool is_dense(const c10::TensorImpl& tensor) {
  return tensor.is_non_overlapping_and_dense();
}

bool same_strides(c10::IntArrayRef sizes, c10::IntArrayRef a, c10::IntArrayRef b) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) {
      return true;
    }
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && a[i] != b[i]) {
      return false;
    }
  }
  return true;
}

bool has_plain_elements(const at::Tensor& tensor) {
  static const c10::DispatchKeySet others({c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
                                           c10::DispatchKey::Quantized, c10::DispatchKey::NestedTensor});
  return !tensor.key_set().has_any(others) && !tensor.is_conj() && !tensor.is_neg();
}

bool storage_host_address(const c10::Storage& storage, void** out_address) {
  const c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (impl->nbytes() == 0 || impl->data() == nullptr) {
    *out_address = nullptr;
    return true;
  }
  return host_address(impl->data_ptr(), impl->nbytes(), out_address);
}

bool reaches_memory(c10::DeviceIndex device) {
  check_device_index(device);
  if (driver().host_address == nullptr) {
    return false;
  }
  const at::Tensor probe = make_device_tensor(current_stream(device), c10::kByte, {1}, {1});
  void* address = nullptr;
  return storage_host_address(probe.storage(), &address);
}

bool is_deterministic() {
  return at::globalContext().deterministicAlgorithms();
}

}  // namespace outboard
