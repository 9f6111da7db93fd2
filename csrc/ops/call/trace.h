// SPDX-License-Identifier: BSD-3-Clause
// Report to the observer of streams what an operator reads and writes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "core/trace.h"
#include "ops/call/call.h"

namespace outboard {

// Of a call that is about to be made.
void trace_arguments(Trace& trace, const Call& call);
// Of what it has made, which is on the stack in place of its arguments.
void trace_results(Trace& trace, const Operator& op, const torch::jit::Stack& stack);
// Of an operator that is no call of the chain: undefined tensors and those of other devices are left out.
void trace_tensors(Trace& trace, const char* op, c10::DeviceIndex device, const at::Tensor& written,
                   const at::Tensor& read);

}  // namespace outboard
