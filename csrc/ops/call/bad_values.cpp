// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/bad_values.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>

#include "core/capture.h"
#include "ops/call/call.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// Return the argument of that name; null if the call has no such tensor, or one without elements.
const at::Tensor* tensor_named(const Call& call, std::string_view name) {
  const std::optional<int> place = call.op().handle.schema().argumentIndexWithName(std::string(name));
  if (!place.has_value()) {
    return nullptr;
  }
  const c10::IValue& value = call.arg(static_cast<size_t>(*place));
  return value.isTensor() && value.toTensor().defined() && value.toTensor().numel() > 0 ? &value.toTensor() : nullptr;
}

void check_deviation(const Call& call) {
  const at::Tensor* std = tensor_named(call, "std");
  TORCH_CHECK(std == nullptr || c10::isComplexType(std->scalar_type()) || std->min().ge(0).item<bool>(),
              "normal expects all elements of std >= 0.0");
}

void check_sorter(const Call& call) {
  const at::Tensor* sorter = tensor_named(call, "sorter");
  if (sorter == nullptr || sorter->scalar_type() != c10::kLong || sorter->dim() == 0) {
    return;
  }
  const auto [least, highest] = at::aminmax(*sorter);
  TORCH_CHECK(least.item<int64_t>() >= 0 && highest.item<int64_t>() < sorter->size(-1),
              "torch.searchsorted(): sorter index out of range");
}

// Without a range in the call, the values must be finite, because they define it.
void check_range(const Call& call) {
  const at::Tensor* self = tensor_named(call, "self");
  constexpr size_t kMin = 2, kMax = 3;
  if (self == nullptr || !c10::isFloatingType(self->scalar_type()) ||
      call.arg(kMin).toScalar().toDouble() != call.arg(kMax).toScalar().toDouble()) {
    return;
  }
  const auto [least, highest] = at::aminmax(*self);
  const double from = least.item<double>(), to = highest.item<double>();
  TORCH_CHECK(std::isfinite(from) && std::isfinite(to), "torch.histc: range of [", from, ", ", to, "] is not finite");
}

// Refuse a number in a tensor like any other number.
void check_filler(const Call& call) {
  const at::Tensor* self = tensor_named(call, "self");
  const at::Tensor* value = tensor_named(call, "value");
  if (self == nullptr || value == nullptr || value->dim() != 0 || value->is_complex() ||
      c10::promoteTypes(self->scalar_type(), value->scalar_type()) == self->scalar_type()) {
    return;
  }
  const c10::Scalar number = value->item();
  AT_DISPATCH_ALL_TYPES_AND2(c10::kHalf, c10::kBFloat16, self->scalar_type(), "fill",
                             [&] { static_cast<void>(number.to<scalar_t>()); });
}

void check_factor(const Call& call) {
  const at::Tensor* self = tensor_named(call, "self");
  if (self == nullptr || self->dim() < 2) {
    return;
  }
  // The first zero's number, or 0.
  const at::Tensor is_zero = self->diagonal(0, -2, -1).eq(0);
  const at::Tensor info = is_zero.to(c10::kInt).argmax(-1).add(1).mul(is_zero.any(-1)).to(c10::kInt);
  at::_linalg_check_errors(info, "cholesky_inverse", self->dim() == 2);
}

// Refuse matrices for which the iteration would not end. Torch's own kernels fail in LAPACK or loop
// forever.
void check_ends(const Call& call) {
  const at::Tensor* matrix = tensor_named(call, "A");
  if (matrix == nullptr || matrix->dim() < 2) {
    return;
  }
  at::Tensor self = matrix->is_complex() ? at::view_as_real(matrix->resolve_conj()).abs().amax(-1) : *matrix;
  const bool is_of_values = call.op().handle.operator_name().name == "aten::_linalg_svd";
  if (!is_of_values) {  // one triangle is read
    const bool is_upper = std::toupper(static_cast<unsigned char>(call.arg(1).toStringRef()[0])) == 'U';
    self = is_upper ? at::triu(self) : at::tril(self);
  }
  constexpr int64_t kNotFinite = -4;  // the number of LAPACK's argument
  const int64_t code = is_of_values ? kNotFinite : self.size(-1);
  const at::Tensor info = at::isfinite(self).flatten(-2).all(-1).logical_not().to(c10::kInt).mul(code);
  at::_linalg_check_errors(info, is_of_values ? "linalg.svd" : "linalg.eigh", self.dim() == 2);
}

// Check the weights in the same calls as torch: for one sample, or without replacement.
void check_weights(const Call& call) {
  const at::Tensor* self = tensor_named(call, "self");
  constexpr size_t kSamples = 1, kReplacement = 2;
  if (self == nullptr || (call.arg(kReplacement).toBool() && call.arg(kSamples).toInt() != 1)) {
    return;
  }
  const int64_t samples = call.arg(kSamples).toInt();
  constexpr int64_t kMaxCategories = int64_t{1} << 24;  // which torch's float32 kernels can distinguish
  if (self->dim() < 1 || self->dim() > 2 || self->numel() == 0 || !self->is_floating_point() || samples <= 0 ||
      self->size(-1) > kMaxCategories || samples > self->size(-1)) {
    return;  // the operator itself raises
  }
  const auto [least, highest] = at::aminmax(*self);
  const double from = least.item<double>(), to = highest.item<double>();
  TORCH_CHECK(from >= 0 && to < INFINITY, "probability tensor contains either `inf`, `nan` or element < 0");
  const double smallest_sum = self->dim() == 1 ? to : self->amax(-1).min().item<double>();
  TORCH_CHECK(smallest_sum > 0, "invalid multinomial distribution (sum of probabilities <= 0)");
}

// A row for all overloads of an operator, and of its in-place form.
struct ValueRow {
  std::string_view op;
  void (*check)(const Call&);
  bool is_left_to_kernels;  // in a capture, which cannot wait: the kernel's own check suffices
};

constexpr ValueRow kValueRows[] = {
#define OB_BAD_VALUES(op, check, is_left) ValueRow{op, check, is_left},
#include <built/book.inc>
#undef OB_BAD_VALUES
};

}  // namespace

std::optional<BadValueRule> bad_value_rule(const Operator& op) {
  const std::string_view name = op.handle.operator_name().name;
  const ValueRow* row = std::find_if(std::begin(kValueRows), std::end(kValueRows), [&](const ValueRow& row_of_table) {
    return name == row_of_table.op || (name.ends_with('_') && name.substr(0, name.size() - 1) == row_of_table.op);
  });
  return row == std::end(kValueRows) ? std::nullopt
                                     : std::optional(BadValueRule{row->check, row->is_left_to_kernels, row->op});
}

void check_bad_values(const BadValueRule& rule, const Call& call) {
  if (call.has_sparse() || (rule.is_left_to_kernels && capture_of(current_stream(call.device())) != nullptr)) {
    return;
  }
  rule.check(call);
}

}  // namespace outboard
