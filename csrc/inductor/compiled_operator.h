// SPDX-License-Identifier: BSD-3-Clause
// Operators as the C++ of torch.compile calls them: untyped arguments take the types of the operator's schema.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ArrayRef.h>
#include <torch_outboard/compiled.h>

#include <atomic>

namespace outboard {

// Never freed: generated code names it.
struct CompiledOperator {
  c10::OperatorName name;
  std::atomic<const c10::OperatorHandle*> handle{nullptr};  // null until the first call
};

// RuntimeError for a null handle, which a model's constant is as long as nobody has loaded it.
const at::Tensor& tensor_of(AtenTensorHandle handle);

// Calls it below autograd. `results` are what compiled.h says of call_operator. RuntimeError for an operator that is not
// registered and for another number of results, TypeError for an argument that its schema has no place for.
void call_compiled(CompiledOperator& op, c10::ArrayRef<torch_outboard::Value> arguments,
                   c10::ArrayRef<AtenTensorHandle*> results);

}  // namespace outboard
