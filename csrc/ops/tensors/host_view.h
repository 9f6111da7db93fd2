// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "core/export.h"

namespace outboard {

// Return a CPU tensor over the memory of a device tensor, which it keeps alive. Waits for the
// device's current stream, but not for work that is queued later. Raise NotSupportedError if
// the host cannot reach the memory.
OUTBOARD_API at::Tensor host_view(const at::Tensor& tensor);

// Do the same without a wait, for a dense tensor of an open device whose memory the host reaches.
at::Tensor host_view_without_wait(const at::Tensor& tensor);
// Return true if the host reaches its memory.
bool is_host_reachable(const at::Tensor& tensor);

}  // namespace outboard
