// SPDX-License-Identifier: BSD-3-Clause
// Transfers between host and device: copies of one range of bytes, which do not go through a
// provider. ops/host/copy.h copies arbitrary tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/stream.h"

namespace outboard {

bool same_bits(const at::Tensor& a, const at::Tensor& b);

// Return true if one linear copy suffices.
bool is_linear(const at::Tensor& a, const at::Tensor& b);

// Return a CPU tensor that has the strides of `like` if they are dense, and is contiguous
// otherwise.
at::Tensor cpu_like(const at::Tensor& like, c10::ScalarType dtype);

// Return a dense device tensor of the same shape, allocated on the device's current stream.
at::Tensor dense_like(const at::Tensor& like, c10::DeviceIndex device, c10::ScalarType dtype);

void copy_bits(const at::Tensor& from, const at::Tensor& to);

// Return `cpu` in a layout that one linear copy can transfer to `like`, or, if `like` has gaps, to
// a dense tensor of its shape.
at::Tensor laid_out_as(const at::Tensor& like, const at::Tensor& cpu);

// Raise if the stream captures. Call it before queueing a copy that is waited for.
void refuse_waiting_copy(const Stream& stream);

// Keep a pinned block until the stream's work that uses it is done, or as long as the graph to
// which the work belongs. Call it before queueing the copy: if a call in between raises, the memory
// is freed.
void keep_pinned(const at::Tensor& tensor, Stream& stream);

// Report a copy from or to pinned memory, for which the caller does not wait, to the observer of
// streams.
void observe_host(const at::Tensor& pinned, const Stream& stream, bool is_write);

// Wait for a queued copy from or to the memory of `host`. If the wait fails, the copy may still be
// running, so the memory is kept until the device has finished it. Waits are counted under `op`.
void wait_for_copy(Stream& stream, const at::Tensor& host, const char* op = "aten::_copy_from");

// Queue one linear copy on the stream.
void copy_bytes(Stream& stream, void* dst, c10::Device dst_device, const void* src, c10::Device src_device,
                size_t bytes);

// Copy a CPU tensor with one linear copy to a device tensor, on the device's current stream. Waits
// unless `non_blocking` and the host memory is pinned.
void linear_to_device(const at::Tensor& src, const at::Tensor& dst, bool non_blocking);

// Copy a CPU tensor to a dense device tensor. Waits.
void host_to_dense(const at::Tensor& cpu, const at::Tensor& dst);

// Return a copy of a CPU tensor on the device, with its strides, for a caller that has just waited
// for the stream. If the host reaches the memory it writes there directly.
at::Tensor to_device(const at::Tensor& cpu, c10::DeviceIndex device);

}  // namespace outboard
