// SPDX-License-Identifier: BSD-3-Clause
// Copies between devices, host and peers.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/stream.h"

namespace outboard {

// `dst.copy_(src)`, at least one of them ours; returns dst. Between devices it is ordered by both sides' current
// streams, to the host it waits unless `non_blocking` and the host memory is pinned.
at::Tensor copy_from(const at::Tensor& src, const at::Tensor& dst, bool non_blocking);

// A copy of a CPU tensor on the device, with its strides, for who has just waited for the stream: where the host reaches
// the memory it writes there itself.
at::Tensor to_device(const at::Tensor& cpu, c10::DeviceIndex device);

// A copy of a device tensor on the CPU, with its strides if they are dense; waits.
at::Tensor to_cpu(const at::Tensor& tensor);

// Queues one linear copy on the stream.
void copy_bytes(Stream& stream, void* dst, c10::Device dst_device, const void* src, c10::Device src_device,
                size_t bytes);

}  // namespace outboard
