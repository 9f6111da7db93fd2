// SPDX-License-Identifier: BSD-3-Clause
// Creates device tensors and computes their sizes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>

#include "core/driver.h"
#include "core/export.h"
#include "core/observer.h"
#include "core/stream.h"

namespace outboard {

inline bool is_device_tensor(const c10::TensorImpl& tensor) {
  return tensor.device_type() == kDeviceType;
}

// Return a new tensor on the stream's device, with memory from the stream's pool. `nbytes` is
// the span of sizes and strides.
at::Tensor make_device_tensor(Stream& stream, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              size_t nbytes);

// Do the same, and compute the span.
at::Tensor make_device_tensor(Stream& stream, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);

// Return a contiguous view of one dimension: `length` elements in memory from the tensor's element
// `offset` on.
at::Tensor flat_view(const at::Tensor& of, int64_t offset, int64_t length);

// Return the bytes of memory that hold the elements from element `offset` on; 0 if there are none.
// Raise RuntimeError beyond 63 bits.
size_t span_bytes(c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t element_size, int64_t offset = 0);

// Return the memory that an access to a strided tensor touches, for the observer of streams.
ObservedAccess access_to(const at::Tensor& tensor, bool is_write);

// Return true if the elements fill one gapless range, each element once, in any order.
bool is_dense(const c10::TensorImpl& tensor);

// Return true if two layouts of these sizes put each element at the same place.
bool same_strides(c10::IntArrayRef sizes, c10::IntArrayRef a, c10::IntArrayRef b);

// Return true if the elements are in one storage according to sizes and strides, without lazy
// conversion.
bool has_plain_elements(const at::Tensor& tensor);

// Return the byte offset of the element of index 0 in the storage.
inline uint64_t offset_bytes(const c10::TensorImpl& tensor) {
  return static_cast<uint64_t>(tensor.storage_offset()) * tensor.itemsize();
}

// Return its device address; 0 for a storage without memory.
inline uint64_t device_address(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const void* base = impl.unsafe_storage().data();
  return base == nullptr ? 0 : reinterpret_cast<uint64_t>(base) + offset_bytes(impl);
}

// Return the host address of the storage's first byte, or false if the host cannot reach
// it. Null for an empty storage.
bool storage_host_address(const c10::Storage& storage, void** out_address);

// Return true if the host can access a device's memory, so that host kernels can run. Allocates a
// minimal block to find out.
OUTBOARD_API bool reaches_memory(c10::DeviceIndex device);

// Return true if torch's deterministic mode is on. Host calls then wait, because the mode is a
// process-wide switch that could change before a queued call runs.
bool is_deterministic();

}  // namespace outboard
