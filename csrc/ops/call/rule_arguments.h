// SPDX-License-Identifier: BSD-3-Clause
// The part of a call that a rule of bad_arguments.h sees.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/call/bad_arguments.h"
#include "ops/call/call.h"

namespace outboard {

// The arguments that a rule names, in its order.
class Arguments {
 public:
  Arguments(const BadArgumentRule& rule, const Call& call) : rule_(rule), call_(call) {}

  const c10::IValue& operator[](size_t i) const { return call_.arg(rule_.index[i]); }
  bool has(size_t i) const { return !(*this)[i].isNone(); }
  const at::Tensor& tensor(size_t i) const { return (*this)[i].toTensor(); }
  bool has_tensor(size_t i) const { return (*this)[i].isTensor() && tensor(i).defined(); }
  // Return the dtype; also works for an argument that is a number in some
  // overloads, as in remainder(2, x).
  c10::ScalarType dtype(size_t i) const {
    return (*this)[i].isTensor() ? tensor(i).scalar_type() : (*this)[i].toScalar().type();
  }
  // Return the number, or `otherwise` for an argument that is a tensor in some
  // overloads, which no rule checks.
  double number(size_t i, double otherwise) const { return (*this)[i].isDouble() ? (*this)[i].toDouble() : otherwise; }
  int64_t integer(size_t i) const { return (*this)[i].toInt(); }

 private:
  const BadArgumentRule& rule_;
  const Call& call_;
};

}  // namespace outboard
