// SPDX-License-Identifier: BSD-3-Clause
// Transfers between host and device: copies of one range of bytes, which go to no provider. ops/host/copy.h copies any
// tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/stream.h"

namespace outboard {

bool same_bits(const at::Tensor& a, const at::Tensor& b);

// Whether one linear copy does it.
bool is_linear(const at::Tensor& a, const at::Tensor& b);

// A CPU tensor with the strides of `like` if those are dense, else contiguous.
at::Tensor cpu_like(const at::Tensor& like, c10::ScalarType dtype);

// A device tensor of the same shape, dense, on the device's current stream.
at::Tensor dense_like(const at::Tensor& like, c10::DeviceIndex device, c10::ScalarType dtype);

void copy_bits(const at::Tensor& from, const at::Tensor& to);

// `cpu` as one linear copy takes it to `like`; if that has gaps, as one takes it to a dense tensor like it.
at::Tensor laid_out_as(const at::Tensor& like, const at::Tensor& cpu);

// To be called before a copy is queued that is then waited for.
void refuse_waiting_copy(const Stream& stream);

// A pinned block in use by a copy: kept until that is done, or as long as the graph that the copy belongs to.
void keep_pinned(const at::Tensor& tensor, Stream& stream);

void wait_for_copy(Stream& stream);

// Queues one linear copy on the stream.
void copy_bytes(Stream& stream, void* dst, c10::Device dst_device, const void* src, c10::Device src_device,
                size_t bytes);

// Copies a CPU tensor to one of the device that one linear copy takes it to, on the device's current stream. Waits unless
// `non_blocking` and the host memory is pinned.
void linear_to_device(const at::Tensor& src, const at::Tensor& dst, bool non_blocking);

// Copies a CPU tensor to a dense one of the device; waits.
void host_to_dense(const at::Tensor& cpu, const at::Tensor& dst);

// A copy of a CPU tensor on the device, with its strides, for who has just waited for the stream: where the host reaches
// the memory it writes there itself.
at::Tensor to_device(const at::Tensor& cpu, c10::DeviceIndex device);

}  // namespace outboard
