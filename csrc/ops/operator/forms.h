// SPDX-License-Identifier: BSD-3-Clause
// The forms of one operator, found by schema: functional (aten::add.Tensor), out= (aten::add.out),
// in-place (aten::add_.Tensor). The provider decides which form may replace which.
//
// On the host, the out= kernel replaces the functional kernel only if _generated/out_forms.inc
// lists the pair. The list rests on two claims, which were verified on the CPU for contiguous,
// transposed, cropped, stepped and expanded inputs:
//  - In outputs with the strides that the functional form or the meta kernel returns, the bits are
//    the functional form's. Calls whose outputs are allocated here need this.
//  - In outputs with any other strides, the values are the same except for the order of roundings,
//    all elements are written, and no other memory is written. No call made here needs this as long
//    as meta kernels return the CPU's strides. But they are not always right, and an out= kernel
//    that holds only for contiguous outputs is right by luck. A structured operator is no
//    exception: the CPU's _log_softmax and native_batch_norm are wrong in such outputs.
//
// Every other operator runs in its functional form, and its results are copied to
// outputs allocated with the meta kernel's strides: a copy corrects strides that differ.
// A user's call of the out= overload runs that kernel whether it is listed or not,
// because the CPU does the same for that call.
//
// Native kernels: ops/native/native.h.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace outboard {

enum class Form : uint8_t { Functional, Out, InPlace };

// The existing forms of an operator. All are empty if the operator is
// not a form of a functional one.
struct FormGroup {
  std::optional<c10::OperatorHandle> functional;
  std::optional<c10::OperatorHandle> out;
  std::optional<c10::OperatorHandle> in_place;
};

// Return the group of an operator. Searches all operators, which takes milliseconds.
FormGroup find_forms(const c10::OperatorHandle& op);

// Return "aten::add" and "Tensor"; an overload without a name is "".
std::pair<std::string, std::string> split_operator_name(const std::string& name);

// Return "aten::add.Tensor", "aten::add.Scalar", …: the overloads of a base name, in order.
std::vector<std::string> overloads_of(const std::string& base);

// Return the out= overload that may replace the functional form on the host.
std::optional<c10::OperatorHandle> find_out_form(const c10::OperatorHandle& functional);

}  // namespace outboard
