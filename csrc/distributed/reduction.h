// SPDX-License-Identifier: BSD-3-Clause
// Reductions in the form that Gloo supports. Other reductions are built from supported reductions.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace outboard {

class Reduction {
 public:
  // Raise ValueError for a reduction that the dtype does not support, and NotSupportedError for
  // dtypes that Gloo does not reduce. `name` is the collective's.
  Reduction(const c10d::ReduceOp& op, c10::ScalarType dtype, int size, const char* name);

  const c10d::ReduceOp& op() const noexcept { return op_; }
  const char* name() const noexcept { return name_; }  // name of the requested reduction: "AVG"
  // Return the same memory as a dtype that Gloo reduces.
  at::Tensor view(const at::Tensor& tensor) const;
  // Compute the result from a sum, in place: AVG divides, PREMUL_SUM multiplies.
  void adjust(const at::Tensor& tensor) const;
  // Return the OB_REDUCE_ value that computes the whole result, or -1 if drivers have no such
  // value.
  int32_t native() const noexcept;
  double scale() const noexcept { return number_; }  // the factor of OB_REDUCE_PREMUL_SUM
  bool adjusts() const noexcept { return adjustment_ != Adjustment::None; }

 private:
  enum class Adjustment : uint8_t { None, Divide, Multiply };
  c10d::ReduceOp op_;
  const char* name_ = "";
  Adjustment adjustment_ = Adjustment::None;
  double number_ = 1.0;
};

// Return the elements as bytes, which Gloo moves for any dtype.
at::Tensor as_bytes(const at::Tensor& tensor);

}  // namespace outboard
