// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace outboard {

// Registers the activity profiler behind torch.profiler, and the stubs behind torch.autograd.profiler without Kineto.
void register_profiler();
void register_profiler_stubs();

}  // namespace outboard
