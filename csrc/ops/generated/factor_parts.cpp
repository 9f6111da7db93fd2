// SPDX-License-Identifier: BSD-3-Clause
#include "ops/generated/factor_parts.h"

#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>

#include <cctype>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace outboard {

namespace {

// LAPACK's answer of a singular value decomposition to an infinity or a NaN.
constexpr int kNotFinite = -4;

// The name of an operator in torch's errors.
std::string api_name(std::string_view op) {
  if (op == "aten::_linalg_solve_ex") {
    return "torch.linalg.solve_ex";
  }
  constexpr std::string_view kPrefix = "aten::linalg_";
  const bool is_of_torch = op == "aten::linalg_lu_factor_ex" || op == "aten::linalg_ldl_factor_ex";
  return (is_of_torch ? "torch.linalg." : "linalg.") + std::string(op.substr(kPrefix.size()));
}

bool is_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2;
}

}  // namespace

bool checked_factors(const Call& call, torch::jit::Stack& results) {
  const c10::FunctionSchema& schema = call.op().handle.schema();
  const std::optional<int> place = schema.argumentIndexWithName("check_errors");
  const at::Tensor& self = call.arg(0).toTensor();
  if (!place.has_value() || !call.arg(static_cast<size_t>(*place)).toBool() || self.is_complex()) {
    return false;
  }
  torch::jit::Stack stack;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    stack.emplace_back(i == static_cast<size_t>(*place) ? c10::IValue(false) : call.arg(i));
  }
  const at::Tensor given = self;
  call.op().handle.callBoxed(stack);
  at::_linalg_check_errors(stack.back().toTensor(), api_name(call.op().name), is_matrix(given));
  results = std::move(stack);
  return true;
}

bool checked_cholesky(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  if (self.is_complex()) {
    return false;
  }
  auto [factor, info] = at::linalg_cholesky_ex(self, /*upper=*/call.arg(1).toBool());
  at::_linalg_check_errors(info, "cholesky", is_matrix(self));
  results.emplace_back(std::move(factor));
  return true;
}

bool refuse_endless_factors(const Call& call, torch::jit::Stack& /*results*/) {
  at::Tensor self = call.arg(0).toTensor();
  if (self.is_complex() || self.numel() == 0) {
    return false;
  }
  const bool is_of_values = call.op().name == "aten::_linalg_svd";
  if (!is_of_values) {  // one triangle is read
    const bool is_upper = std::toupper(static_cast<unsigned char>(call.arg(1).toStringRef()[0])) == 'U';
    self = is_upper ? at::triu(self) : at::tril(self);
  }
  const int64_t code = is_of_values ? kNotFinite : self.size(-1);
  const at::Tensor info = at::isfinite(self).flatten(-2).all(-1).logical_not().to(c10::kInt).mul(code);
  at::_linalg_check_errors(info, is_of_values ? "linalg.svd" : "linalg.eigh", is_matrix(self));
  return false;
}

}  // namespace outboard
