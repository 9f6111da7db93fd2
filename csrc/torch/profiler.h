// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace outboard {

// Register the activity profiler of torch.profiler, and the stubs of
// torch.autograd.profiler without Kineto.
void register_profiler();
void register_profiler_stubs();

}  // namespace outboard
