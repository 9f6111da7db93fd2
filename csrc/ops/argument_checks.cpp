// SPDX-License-Identifier: BSD-3-Clause
#include "ops/argument_checks.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

namespace outboard {

namespace {

// Where an element-wise operator promotes its arguments' dtypes and writes what comes of it to one of them.
std::optional<uint8_t> promoted_into(const OpPlan& plan) {
  if (!plan.op.hasTag(at::Tag::pointwise)) {
    return std::nullopt;
  }
  const auto written =
      std::find_if(plan.args.begin(), plan.args.end(), [](const ArgInfo& arg) { return arg.is_written; });
  if (written == plan.args.end() || written->kind != ArgKind::Tensor) {
    return std::nullopt;
  }
  return static_cast<uint8_t>(written - plan.args.begin());
}

// bool, integers, floats, complex numbers: no result is cast down this order.
int category(c10::ScalarType dtype) {
  return c10::isComplexType(dtype) ? 3 : c10::isFloatingType(dtype) ? 2 : dtype != c10::kBool ? 1 : 0;
}

int category(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? category(value.toTensor().scalar_type()) : 0;
  }
  return value.isComplexDouble() ? 3 : value.isDouble() ? 2 : value.isInt() ? 1 : 0;
}

// Most arguments have the dtype of what is written, and so its category.
bool has_dtype(const c10::IValue& value, caffe2::TypeMeta dtype) {
  return value.isTensor() && value.toTensor().dtype() == dtype;
}

// An argument of a higher category than the one that is written may make a result that can't be cast to it. Some
// operators' results don't follow their arguments (comparisons): the kernel itself says, of one element.
void check_promotion(uint8_t written, const Call& call) {
  const caffe2::TypeMeta dtype =
      call.arg(written).isTensor() ? call.arg(written).toTensor().dtype() : caffe2::TypeMeta();
  const int highest = category(call.arg(written));
  for (size_t i = 0; i < call.plan().args.size(); ++i) {
    if (C10_UNLIKELY(!has_dtype(call.arg(i), dtype) && category(call.arg(i)) > highest)) {
      rehearse(call, StandIn::Element);
      return;
    }
  }
}

}  // namespace

std::unique_ptr<const ArgumentChecks> argument_checks(const OpPlan& plan) {
  auto checks = std::make_unique<ArgumentChecks>();
  checks->overlaps = overlap_rules(plan);
  checks->bad_arguments = bad_argument_rules(plan);
  checks->promoted_into = promoted_into(plan);
  if (checks->overlaps.empty() && checks->bad_arguments.empty() && !checks->promoted_into) {
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
  if (checks.promoted_into && !call.has_sparse()) {
    check_promotion(*checks.promoted_into, call);
  }
}

}  // namespace outboard
