// SPDX-License-Identifier: BSD-3-Clause
// Copies between devices, host and peers.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/stream.h"

namespace outboard {

// Run `dst.copy_(src)`, with at least one tensor on the driver's devices, and return dst. A copy
// between devices is ordered by the current streams of both. A copy to the host waits unless
// `non_blocking` and the host memory is pinned.
at::Tensor copy_from(const at::Tensor& src, const at::Tensor& dst, bool non_blocking);

// Return a copy of a device tensor on the CPU, with its strides if they are dense. Waits.
at::Tensor to_cpu(const at::Tensor& tensor);

}  // namespace outboard
