// SPDX-License-Identifier: BSD-3-Clause
// The forms of one operator, found by schema: functional (aten::add.Tensor), out= (aten::add.out), in place
// (aten::add_.Tensor). Which may stand in for which depends on who runs it.
//
// On the host, the out= kernel stands in for the functional one only if _generated/out_forms.inc lists the pair. The
// list rests on a proof on the CPU, over inputs that are contiguous, transposed, cropped, stepped and expanded, of two
// claims:
//  - In outputs of the strides that the functional form or the meta kernel gives, the bits are the functional form's.
//    This is what a call needs whose outputs are allocated here.
//  - In outputs of any other strides the values are the same but for the order of roundings, all elements are written,
//    and nothing beside them. No call that is made here needs it as long as meta kernels give the CPU's strides, but
//    they are not always right, and an out= kernel that holds only for contiguous outputs is right by luck. Being
//    structured is no licence: the CPU's _log_softmax and native_batch_norm are wrong in such outputs.
// Every other operator runs in its functional form, and its results are copied to outputs that are allocated with the
// meta kernel's strides: a copy mends strides that differ. A call of the out= overload by the user goes to that kernel
// whether it is listed or not, since that is what the CPU does with the same call.
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

// The forms of an operator that exist; none is there if the operator is not one form of a functional one.
struct FormGroup {
  std::optional<c10::OperatorHandle> functional;
  std::optional<c10::OperatorHandle> out;
  std::optional<c10::OperatorHandle> in_place;
};

// The group of an operator; it looks through all operators, which takes milliseconds.
FormGroup find_forms(const c10::OperatorHandle& op);

// "aten::add" and "Tensor"; an overload without a name is "".
std::pair<std::string, std::string> split_operator_name(const std::string& name);

// "aten::add.Tensor", "aten::add.Scalar", …: the overloads of a name without its overload; in order.
std::vector<std::string> overloads_of(const std::string& base);

// The out= overload that may run in the functional form's place on the host.
std::optional<c10::OperatorHandle> proven_out_form(const c10::OperatorHandle& functional);

}  // namespace outboard
