// SPDX-License-Identifier: BSD-3-Clause
#include "ops/known_warnings.h"

#include <ATen/core/Tensor.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <string_view>

#include "ops/call.h"
#include "ops/plan.h"

namespace outboard {

namespace {

constexpr std::string_view kCorrected[] = {"aten::std.correction",      "aten::std.correction_out",
                                           "aten::std_mean.correction", "aten::var.correction",
                                           "aten::var.correction_out",  "aten::var_mean.correction"};

// How many elements become one: (self, dim, correction, …).
int64_t reduced(const at::Tensor& self, const c10::IValue& dims) {
  if (!dims.isIntList() || dims.toIntList().empty()) {
    return self.numel();
  }
  int64_t result = 1;
  for (const int64_t dim : dims.toIntList()) {
    result *= self.dim() == 0 ? 1 : self.size(c10::maybe_wrap_dim(dim, self.dim()));
  }
  return result;
}

}  // namespace

std::string known_warning(const Call& call) {
  const std::string_view name = call.plan().name;
  if (std::find(std::begin(kCorrected), std::end(kCorrected), name) == std::end(kCorrected)) {
    return "";
  }
  const double correction = call.arg(2).isNone() ? 1 : call.arg(2).toScalar().toDouble();
  if (static_cast<double>(reduced(call.arg(0).toTensor(), call.arg(1))) - correction > 0) {
    return "";
  }
  const std::string_view function = name.substr(6, name.find('.') - 6);
  return std::string(function) +
         "(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input numel"
         " divided by output numel).";
}

}  // namespace outboard
