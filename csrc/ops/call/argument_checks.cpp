// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/argument_checks.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "ops/call/known_warnings.h"
#include "ops/call/stand_ins.h"

namespace outboard {

namespace {

// Return the argument to which an element-wise operator writes its result, if it
// promotes its arguments' dtypes.
std::optional<uint8_t> promoted_argument(const Operator& op) {
  if (!op.handle.hasTag(at::Tag::pointwise)) {
    return std::nullopt;
  }
  const auto written = std::find_if(op.args.begin(), op.args.end(), [](const ArgInfo& arg) { return arg.is_written; });
  if (written == op.args.end() || written->kind != ArgKind::Tensor) {
    return std::nullopt;
  }
  return static_cast<uint8_t>(written - op.args.begin());
}

// Return the category: bool, integers, floats, complex numbers. No
// result is cast to a lower category.
int category(c10::ScalarType dtype) {
  return c10::isComplexType(dtype) ? 3 : c10::isFloatingType(dtype) ? 2 : dtype != c10::kBool ? 1 : 0;
}

int category(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? category(value.toTensor().scalar_type()) : 0;
  }
  return value.isComplexDouble() ? 3 : value.isDouble() ? 2 : value.isInt() ? 1 : 0;
}

// Most arguments have the dtype of the written one, and so its category.
bool has_dtype(const c10::IValue& value, caffe2::TypeMeta dtype) {
  return value.isTensor() && value.toTensor().dtype() == dtype;
}

// Check the categories. An argument of a higher category than the written one may produce a result
// that cannot be cast to it. The results of some operators (comparisons) do not follow their
// arguments: the kernel itself decides, on one element.
void check_promotion(uint8_t written, const Call& call) {
  const caffe2::TypeMeta dtype =
      call.arg(written).isTensor() ? call.arg(written).toTensor().dtype() : caffe2::TypeMeta();
  const int highest = category(call.arg(written));
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    if (C10_UNLIKELY(!has_dtype(call.arg(i), dtype) && category(call.arg(i)) > highest)) {
      check_on_stand_ins(call, StandIn::Element);
      return;
    }
  }
}

std::vector<uint8_t> numbers_of(const Operator& op) {
  std::vector<uint8_t> places;
  const auto& declared = op.handle.schema().arguments();
  for (size_t i = 0; op.is_torch_operator && i < declared.size(); ++i) {
    const c10::TypePtr type = declared[i].type();
    const bool is_optional = type->kind() == c10::TypeKind::OptionalType;
    if ((is_optional ? type->castRaw<c10::OptionalType>()->getElementType() : type)->kind() ==
        c10::TypeKind::NumberType) {
      places.push_back(static_cast<uint8_t>(i));
    }
  }
  return places;
}

// Return true for numbers that fit every dtype except bool. NaN does not.
bool is_small(const c10::IValue& number) {
  return number.isInt()      ? number.toInt() >= 0 && number.toInt() <= 127
         : number.isDouble() ? std::abs(number.toDouble()) <= 127
                             : !number.isComplexDouble();
}

// Return true if a dtype may not hold a number. Only complex dtypes hold complex numbers.
// Conversions of real numbers to bool never overflow, although `may_overflow` compares them with 0
// and 1.
bool may_exceed(const c10::Scalar& number, c10::ScalarType dtype) {
  if (!number.isComplex()) {
    return dtype != c10::kBool && may_overflow(number, dtype);
  }
  const c10::complex<double> value = number.toComplexDouble();
  const c10::ScalarType part = c10::toRealValueType(dtype);
  return !c10::isComplexType(dtype) || may_overflow(value.real(), part) || may_overflow(value.imag(), part);
}

// Torch 2.15 refuses negative bounds of unsigned integers; earlier versions wrap them.
bool is_negative_bound(const c10::IValue& number, const Call& call) {
  const bool is_clamp = call.op().handle.operator_name().name.starts_with("aten::clamp");
  return is_clamp && number.isInt() && number.toInt() < 0 && call.arg(0).isTensor() &&
         call.arg(0).toTensor().scalar_type() == c10::kByte;
}

bool is_index(std::string_view name) {
  return name == "index" || name == "indices";
}

// Check a number. A number beyond a tensor's dtype may also exceed the dtype in which the kernel
// computes: the kernel decides, on one element.
void check_number(const c10::IValue& number, const Call& call) {
  if (C10_LIKELY(is_small(number))) {
    return;
  }
  bool is_beyond = false;
  bool is_beyond_bool = false;
  bool has_others = false;  // bools beside them are masks, which no number is written to
  for (size_t i = 0; !is_beyond && i < call.op().args.size(); ++i) {
    if (is_index(call.op().handle.schema().arguments()[i].name())) {
      continue;  // no number is written to it
    }
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
      const bool is_bool = tensor.scalar_type() == c10::kBool;
      (is_bool ? is_beyond_bool : is_beyond) |= may_exceed(number.toScalar(), tensor.scalar_type());
      has_others |= !is_bool;
    });
  }
  is_beyond |= is_beyond_bool && !has_others;
  if (is_negative_bound(number, call)) {
    check_on_stand_ins(call, StandIn::Element);
  }
  if (is_beyond && harmless_elements(call.op().facts)) {
    check_on_stand_ins(call, is_elementwise(call.op()) ? StandIn::Element : StandIn::Whole);
    call.require_cpu_kernel();  // the kernel may accept the number: torch 2.15 clamps by bounds that exceed a dtype
  }
}

}  // namespace

std::unique_ptr<const ArgumentChecks> argument_checks(const Operator& op) {
  auto checks = std::make_unique<ArgumentChecks>();
  checks->overlaps = overlap_rules(op);
  checks->bad_arguments = bad_argument_rules(op);
  checks->promoted_argument = promoted_argument(op);
  checks->numbers = numbers_of(op);
  checks->bad_values = bad_value_rule(op);
  if (checks->overlaps.empty() && checks->bad_arguments.empty() && !checks->promoted_argument &&
      checks->numbers.empty() && !checks->bad_values) {
    return nullptr;
  }
  return checks;
}

void run_argument_checks(const ArgumentChecks& checks, const Call& call) {
  for (const OverlapRule& rule : checks.overlaps) {
    check_overlap(rule, call);
  }
  for (const BadArgumentRule& rule : checks.bad_arguments) {
    check_bad_arguments(rule, call);
  }
  for (const uint8_t place : checks.numbers) {
    check_number(call.arg(place), call);
  }
  if (checks.promoted_argument && !call.has_sparse()) {
    check_promotion(*checks.promoted_argument, call);
  }
  if (C10_UNLIKELY(checks.bad_values.has_value())) {
    check_bad_values(*checks.bad_values, call);
  }
}

namespace {

void complete_operator(Operator& op) {
  op.issue_known_warning = argument_warnings_of(op.facts.known_warning);
  op.checks = argument_checks(op);
}

// Registered when the library is loaded, so that every operator has its checks.
[[maybe_unused]] const bool completes_operators = (complete_operators_with(complete_operator), true);

}  // namespace

}  // namespace outboard
