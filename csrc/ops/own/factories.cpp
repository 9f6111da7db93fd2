// SPDX-License-Identifier: BSD-3-Clause
// Allocation and storage.
#include "ops/own/factories.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "core/device.h"
#include "memory/caching_allocator.h"
#include "ops/host/copy.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// Return the current stream of the device that a factory names. Raise for options that a factory of
// a dense tensor does not accept.
Stream& factory_stream(std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                       std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(c10::kStrided) == c10::kStrided, "a dense tensor was expected, not ",
                              layout.value_or(c10::kStrided));
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::DeviceIndex index = device && device->has_index() ? device->index() : current_device();
  check_device_index(index);
  return current_stream(index);
}

c10::ScalarType scalar_type_of(std::optional<c10::ScalarType> dtype) {
  return dtype ? *dtype : c10::get_default_dtype_as_scalartype();
}

void fill_if_deterministic(const at::Tensor& tensor) {
  if (C10_UNLIKELY(is_deterministic() && at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_empty_deterministic_(const_cast<at::Tensor&>(tensor));
  }
}

at::Tensor empty_memory_format(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> memory_format) {
  Stream& stream = factory_stream(layout, device, pin_memory);
  at::detail::check_size_nonnegative(size);
  const c10::ScalarType type = scalar_type_of(dtype);
  const size_t nbytes = at::detail::computeStorageNbytesContiguous(size, c10::elementSize(type));
  at::Tensor tensor = make_device_tensor(stream, type, /*sizes=*/{0}, /*strides=*/{1}, nbytes);
  if (size.size() != 1 || size[0] != 0) {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  }
  if (memory_format.has_value() && *memory_format != c10::MemoryFormat::Contiguous) {
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  fill_if_deterministic(tensor);
  return tensor;
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
  Stream& stream = factory_stream(layout, device, pin_memory);
  at::detail::check_size_nonnegative(size);
  at::Tensor tensor = make_device_tensor(stream, scalar_type_of(dtype), size, stride);
  fill_if_deterministic(tensor);
  return tensor;
}

// Resize a tensor, and grow its storage if needed.
void resize_tensor(c10::TensorImpl* tensor, c10::IntArrayRef size, c10::OptionalArrayRef<int64_t> stride) {
  if (tensor->sizes() == size && (!stride || tensor->strides() == *stride)) {
    return;
  }
  if (stride) {
    tensor->set_sizes_and_strides(size, *stride);
  } else {
    tensor->set_sizes_contiguous(size);
  }
  if (tensor->numel() == 0) {
    return;
  }
  const auto offset = static_cast<size_t>(tensor->storage_offset());
  const size_t nbytes = stride ? at::detail::computeStorageNbytes(size, *stride, tensor->itemsize(), offset)
                               : at::detail::computeStorageNbytesContiguous(size, tensor->itemsize(), offset);
  const c10::Storage& storage = tensor->unsafe_storage();
  if (nbytes > storage.nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, nbytes);
  }
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size,
                          std::optional<c10::MemoryFormat> memory_format) {
  const int64_t old_bytes = static_cast<int64_t>(self.storage().nbytes());
  resize_tensor(self.unsafeGetTensorImpl(), size, std::nullopt);
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format", *memory_format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  if (C10_UNLIKELY(is_deterministic() && at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_resize_deterministic_(self, old_bytes);
  }
  return self;
}

at::Tensor& set_source_storage_offset(at::Tensor& self, c10::Storage source, int64_t offset, c10::IntArrayRef size,
                                      c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  resize_tensor(self.unsafeGetTensorImpl(), size,
                stride.data() == nullptr && !size.empty() ? std::nullopt : c10::OptionalArrayRef<int64_t>(stride));
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, c10::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_source_storage_offset(self, std::move(source), 0, elements, {});
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() != source.unsafeGetTensorImpl()) {
    return set_source_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
  }
  return self;
}

at::Tensor& set_(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocate(current_stream(self.device().index()), 0),
                       &device_allocator(), /*resizable=*/true);
  return set_source_storage_offset(self, std::move(storage), 0, {0}, {});
}

bool is_set_to(const at::Tensor& self, const at::Tensor& source) {
  return self.storage().unsafeGetStorageImpl() == source.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == source.storage_offset() && self.dim() == source.dim() &&
         self.sizes() == source.sizes() && self.strides() == source.strides();
}

at::Tensor efficient_zero_tensor(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                                 std::optional<bool> pin_memory) {
  Stream& stream = factory_stream(layout, device, pin_memory);
  const c10::ScalarType type = scalar_type_of(dtype);
  // No memory, but a size that bounds its views.
  const size_t nbytes = at::detail::computeStorageNbytesContiguous(size, c10::elementSize(type));
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, allocate(stream, 0), &device_allocator(),
                       /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor}),
      c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return tensor;
}

at::Tensor copy_from_op(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  return copy_from(self, dst, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

void record_stream_op(at::Tensor& self, c10::Stream stream) {
  TORCH_CHECK_VALUE(stream.device_type() == kDeviceType, "record_stream: the stream belongs to ", stream.device(),
                    ", the tensor to ", self.device());
  record_stream(self.storage().data_ptr(), from_c10(stream));
}

// Without this, Module.to and `param.data = …` would make new parameters
// instead of moving the old ones.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto is_dense_kind = [](const at::Tensor& tensor) {
    return tensor.layout() == c10::kStrided &&
           (tensor.device().is_cpu() || is_device_tensor(*tensor.unsafeGetTensorImpl()));
  };
  return self.key_set() == from.key_set() || (is_dense_kind(self) && is_dense_kind(from));
}

}  // namespace

void register_factories(torch::Library& aten) {
  aten.impl("empty.memory_format", empty_memory_format);
  aten.impl("empty_strided", empty_strided);
  aten.impl("_efficientzerotensor", efficient_zero_tensor);
  aten.impl("resize_", resize_);
  aten.impl("set_", set_);
  aten.impl("set_.source_Storage", set_source_storage);
  aten.impl("set_.source_Storage_storage_offset", set_source_storage_offset);
  aten.impl("set_.source_Tensor", set_source_tensor);
  aten.impl("is_set_to", is_set_to);
  aten.impl("_copy_from", copy_from_op);
  aten.impl("_copy_from_and_resize", copy_from_and_resize);
  aten.impl("record_stream", record_stream_op);
  aten.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

}  // namespace outboard
