// SPDX-License-Identifier: BSD-3-Clause
// Create device tensors, and compute their sizes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>

#include "core/driver.h"
#include "core/export.h"
#include "core/stream.h"

namespace outboard {

inline bool is_ours(const c10::TensorImpl& tensor) {
  return tensor.device_type() == kDeviceType;
}

// A fresh tensor on the stream's device, its memory from the stream's pool. `nbytes` is what sizes and strides span.
at::Tensor make_device_tensor(Stream& stream, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              size_t nbytes);

// The same, computing the span.
at::Tensor make_device_tensor(Stream& stream, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);

// Issues what torch's own allocations warn of: complex halves are experimental.
void warn_of_dtype(c10::ScalarType dtype);

// Bytes of a memory in which the elements lie from element `offset` on; 0 if there are none. RuntimeError beyond 63 bits.
size_t span_bytes(c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t element_size, int64_t offset = 0);

// Whether the elements fill one gapless range, each element once, in whatever order.
bool is_dense(const c10::TensorImpl& tensor);

// Whether the elements lie in one storage as sizes and strides say, each as it is.
bool has_plain_elements(const at::Tensor& tensor);

// Where the element of index 0 lies in the storage, in bytes.
inline uint64_t offset_bytes(const c10::TensorImpl& tensor) {
  return static_cast<uint64_t>(tensor.storage_offset()) * tensor.itemsize();
}

// Where it lies on the device; 0 for a storage without memory.
inline uint64_t device_address(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const void* base = impl.unsafe_storage().data();
  return base == nullptr ? 0 : reinterpret_cast<uint64_t>(base) + offset_bytes(impl);
}

// Host address of the storage's first byte, or false if the host cannot reach it. Null for an empty storage.
bool storage_host_address(const c10::Storage& storage, void** out_address);

// Whether the host reaches a device's memory, of which it asks for the least block: whether kernels on the host can run.
OUTBOARD_API bool reaches_memory(c10::DeviceIndex device);

// Whether torch's deterministic mode is on, in which host calls wait (the mode is a process-wide switch that a queued
// call could meet changed).
bool is_deterministic();

}  // namespace outboard
