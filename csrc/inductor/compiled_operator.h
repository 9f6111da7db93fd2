// SPDX-License-Identifier: BSD-3-Clause
// Operators as called by torch.compile's C++: untyped arguments are converted to the types in the
// operator's schema.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ArrayRef.h>
#include <torch_outboard/compiled.h>

#include <atomic>

namespace outboard {

// An operator that generated code refers to. Never freed.
struct CompiledOperator {
  c10::OperatorName name;
  std::atomic<const c10::OperatorHandle*> handle{nullptr};  // null until the first call
};

// Return the tensor. Raise RuntimeError for a null handle, such as a model's
// constant that was not loaded yet.
const at::Tensor& tensor_of(AtenTensorHandle handle);

// Call the operator below autograd. compiled.h describes `results`, under call_operator. Raise
// RuntimeError for an operator that is not registered or for a wrong number of results, and
// TypeError for an argument that its schema does not have.
void call_compiled(CompiledOperator& op, c10::ArrayRef<torch_outboard::Value> arguments,
                   c10::ArrayRef<AtenTensorHandle*> results);

}  // namespace outboard
