// SPDX-License-Identifier: BSD-3-Clause
// Copies between devices, host and peers.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/stream.h"

namespace outboard {

// `dst.copy_(src)`, at least one of them ours; returns dst. Between devices it is ordered by both sides' current
// streams, to the host it waits unless `non_blocking` and the host memory is pinned.
at::Tensor copy_from(const at::Tensor& src, const at::Tensor& dst, bool non_blocking);

// A copy of a device tensor on the CPU, with its strides if they are dense; waits.
at::Tensor to_cpu(const at::Tensor& tensor);

}  // namespace outboard
