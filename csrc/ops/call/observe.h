// SPDX-License-Identifier: BSD-3-Clause
// Reports an operator's reads and writes to the observer of streams.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "core/observer.h"
#include "ops/call/call.h"

namespace outboard {

// Report the arguments of a call that is about to run.
void observe_arguments(Observer& observer, const Call& call);
// Report the results of a call, which have replaced its arguments on the stack.
void observe_results(Observer& observer, const Operator& op, const torch::jit::Stack& stack);
// Report the tensors of an operator outside the chain. Undefined tensors and
// tensors of other devices are skipped.
void observe_tensors(Observer& observer, const char* op, c10::DeviceIndex device, const at::Tensor& written,
                     const at::Tensor& read);

}  // namespace outboard
