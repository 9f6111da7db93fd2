// SPDX-License-Identifier: BSD-3-Clause
// Reductions in the form that Gloo supports. Missing ones are built from those it has.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace outboard {

class Reduction {
 public:
  // ValueError for what makes no sense of the dtype, NotSupportedError for dtypes that Gloo doesn't reduce. `name` is the
  // collective's.
  Reduction(const c10d::ReduceOp& op, c10::ScalarType dtype, int size, const char* name);

  const c10d::ReduceOp& op() const noexcept { return op_; }
  // The same memory as a dtype that Gloo reduces.
  at::Tensor view(const at::Tensor& tensor) const;
  // Makes the result of a sum: AVG divides, PREMUL_SUM multiplies. In place.
  void adjust(const at::Tensor& tensor) const;
  bool adjusts() const noexcept { return adjustment_ != Adjustment::None; }

 private:
  enum class Adjustment : uint8_t { None, Divide, Multiply };
  c10d::ReduceOp op_;
  Adjustment adjustment_ = Adjustment::None;
  double number_ = 1.0;
};

// The elements as bytes, which Gloo moves whatever they are.
at::Tensor as_bytes(const at::Tensor& tensor);

}  // namespace outboard
