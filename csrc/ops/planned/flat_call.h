// SPDX-License-Identifier: BSD-3-Clause
// A call of an elementwise operator whose tensors have the same dense layout, as a call with
// tensors of one dimension. One plan then serves tensors of all ranks and memory formats.
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <optional>

#include "ops/call/call.h"
#include "ops/operator/signatures.h"

namespace outboard {

class FlatCall {
 public:
  // Flatten the tensors of a call, if possible. The object refers to the call.
  explicit FlatCall(const Call& original);
  FlatCall(const FlatCall&) = delete;
  FlatCall& operator=(const FlatCall&) = delete;

  // Return the call whose plan is needed: with tensors of one dimension, or the original one.
  const Call& call() const { return flat_ ? *flat_ : original_; }
  const Call& original() const { return original_; }
  bool is_flat() const { return flat_.has_value(); }

 private:
  const Call& original_;
  torch::jit::Stack stack_;
  std::optional<Call> flat_;
};

}  // namespace outboard
