// SPDX-License-Identifier: BSD-3-Clause
#include "ops/planned/composed_factors.h"

#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/geqrf.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ormqr.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace outboard {

namespace {

// The name of an operator in torch's errors.
std::string api_name(std::string_view op) {
  if (op == "aten::_linalg_solve_ex") {
    return "torch.linalg.solve_ex";
  }
  constexpr std::string_view kPrefix = "aten::linalg_";
  const bool is_of_torch = op == "aten::linalg_lu_factor_ex" || op == "aten::linalg_ldl_factor_ex";
  return (is_of_torch ? "torch.linalg." : "linalg.") + std::string(op.substr(kPrefix.size()));
}

// The degree of Taylor's polynomial, a multiple of four, and the matrix norms up to which its error
// is below the type's precision: the values for degree 18 in Bader, Blanes and Casas, "Computing
// the matrix exponential with an optimized Taylor polynomial approximation", 2019, table 1.
constexpr int64_t kDegree = 20;
constexpr double kNormOfFloats = 3.010066362817634, kNormOfDoubles = 1.090863719290036;

// Return Taylor's polynomial of a matrix, by powers of its fourth power.
at::Tensor exponential_of_small(const at::Tensor& matrix) {
  const at::Tensor second = at::matmul(matrix, matrix), third = at::matmul(second, matrix);
  const at::Tensor fourth = at::matmul(second, second);
  const at::Tensor identity = at::eye(matrix.size(-1), matrix.options());
  std::vector<double> inverse{1};  // of factorials
  for (int64_t i = 1; i <= kDegree; ++i) {
    inverse.push_back(inverse.back() / static_cast<double>(i));
  }
  at::Tensor result = fourth.mul(inverse.back());
  for (int64_t first = kDegree - 4; first >= 0; first -= 4) {
    const double* factor = &inverse[static_cast<size_t>(first)];
    result = result.add(identity, factor[0]).add(matrix, factor[1]).add(second, factor[2]).add(third, factor[3]);
    if (first > 0) {
      result = at::matmul(result, fourth);
    }
  }
  return result;
}

bool is_real(const at::Tensor& tensor) {
  return tensor.scalar_type() == c10::kFloat || tensor.scalar_type() == c10::kDouble;
}

// Return the shortest solution, and the reflected rows of the right side that
// no solution reaches.
std::tuple<at::Tensor, at::Tensor> solve_full_rank(const at::Tensor& a, const at::Tensor& right) {
  const int64_t rows = a.size(-2), columns = a.size(-1);
  if (rows >= columns) {
    const auto [factors, tau] = at::geqrf(a);
    const at::Tensor turned = at::ormqr(factors, tau, right, /*left=*/true, /*transpose=*/true);
    const at::Tensor upper = turned.narrow(-2, 0, columns);
    return {at::linalg_solve_triangular(factors.narrow(-2, 0, columns), upper, /*upper=*/true),
            turned.narrow(-2, columns, rows - columns)};
  }
  const auto [factors, tau] = at::geqrf(a.mT());
  const at::Tensor half = at::linalg_solve_triangular(factors.narrow(-2, 0, rows).mT(), right, /*upper=*/false);
  const at::Tensor padded = at::constant_pad_nd(half, {0, 0, 0, columns - rows});
  return {at::ormqr(factors, tau, padded, /*left=*/true, /*transpose=*/false), right};
}

bool is_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2;
}

}  // namespace

bool checked_factors(const Call& call, torch::jit::Stack& results) {
  const c10::FunctionSchema& schema = call.op().handle.schema();
  const std::optional<int> place = call.op().check_errors;
  const at::Tensor& self = call.arg(0).toTensor();
  if (!place.has_value() || !call.arg(static_cast<size_t>(*place)).toBool() || self.is_complex()) {
    return false;
  }
  torch::jit::Stack stack;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    stack.emplace_back(i == static_cast<size_t>(*place) ? c10::IValue(false) : call.arg(i));
  }
  const at::Tensor target = self;
  call.op().handle.callBoxed(stack);
  at::_linalg_check_errors(stack.back().toTensor(), api_name(call.op().name), is_matrix(target));
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

bool least_squares(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& a = call.arg(0).toTensor();
  const at::Tensor& b = call.arg(1).toTensor();
  const std::string driver = call.arg(3).isNone() ? "gelsy" : call.arg(3).toStringRef();
  const bool is_of_values = driver == "gelsd" || driver == "gelss";
  if (!is_real(a) || a.scalar_type() != b.scalar_type() || a.device() != b.device() || a.dim() < 2 || a.numel() == 0 ||
      b.numel() == 0 || !(is_of_values || driver == "gelsy" || driver == "gels")) {
    return false;  // the operator itself raises, or there is nothing to compute
  }
  const c10::IntArrayRef lines = a.sizes().slice(0, static_cast<size_t>(a.dim() - 1));
  const bool is_vector = b.sizes() == lines;
  const at::Tensor right = is_vector ? b.unsqueeze(-1) : b;
  if (right.dim() != a.dim() || right.sizes().slice(0, lines.size()) != lines) {
    return false;
  }
  for (const size_t place : {4, 5, 6, 7}) {  // of the arguments that it writes
    const c10::ScalarType wanted = place == 6 ? c10::kLong : a.scalar_type();
    if (call.arg(place).toTensor().scalar_type() != wanted) {
      return false;  // the operator itself raises or converts
    }
  }
  const int64_t rows = a.size(-2), columns = a.size(-1);
  const at::Tensor nothing = at::empty({0}, a.options());
  at::Tensor rank = at::empty({0}, a.options().dtype(c10::kLong));
  at::Tensor residuals = nothing, values = nothing, result;
  if (driver == "gels") {
    at::Tensor rest;
    std::tie(result, rest) = solve_full_rank(a, right);
    if (rows > columns) {
      residuals = rest.square().sum(-2);
    }
  } else {
    const double least = call.arg(2).isNone()
                             ? at::native::_get_epsilon(a.scalar_type()) * static_cast<double>(std::max(rows, columns))
                             : call.arg(2).toDouble();
    const auto [u, singular, vh] = at::linalg_svd(a, /*full_matrices=*/false);
    const at::Tensor is_taken = singular.gt(singular.amax(-1, /*keepdim=*/true).mul(least));
    const at::Tensor inverse = at::where(is_taken, singular.reciprocal(), at::zeros({}, singular.options()));
    result = at::matmul(vh.mT(), at::matmul(u.mT(), right).mul(inverse.unsqueeze(-1)));
    rank = is_taken.sum(-1);
    if (is_of_values) {
      values = singular;
      if (rows > columns && rank.eq(columns).all().item<bool>()) {
        residuals = at::matmul(a, result).sub(right).square().sum(-2);
      }
    }
  }
  result = is_vector ? result.squeeze(-1) : result;
  size_t place = 4;
  for (const at::Tensor& output : {result, residuals, rank, values}) {
    at::Tensor target = call.arg(place++).toTensor();
    at::native::resize_output(target, output.sizes());
    target.copy_(output);
    results.emplace_back(std::move(target));
  }
  return true;
}

bool matrix_exponential(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  const bool is_double = self.scalar_type() == c10::kDouble;
  if (!is_real(self) || self.dim() < 2 || self.size(-1) != self.size(-2) || self.numel() == 0) {
    return false;  // the operator itself raises, or there is nothing to compute
  }
  if (self.size(-1) == 1) {
    results.emplace_back(self.exp());
    return true;
  }
  const at::Tensor norm = self.abs().sum(-2, /*keepdim=*/true).amax(-1, /*keepdim=*/true);
  const at::Tensor halvings =
      norm.div(is_double ? kNormOfDoubles : kNormOfFloats).log2().ceil().clamp_min(0).nan_to_num(0, 0, 0);
  const double most = halvings.max().item().toDouble();
  // NaN if the norm is not finite, because the CPU then returns NaN for the whole matrix.
  const at::Tensor scale = halvings.neg().exp2().add(norm.sub(norm));
  at::Tensor result = exponential_of_small(self.mul(scale));
  // A double is halved no more often than its exponent says.
  for (int64_t done = 0; done <= std::numeric_limits<double>::max_exponent && static_cast<double>(done) < most;
       ++done) {
    const at::Tensor squared = at::matmul(result, result);
    result = self.dim() == 2 ? squared : at::where(halvings.gt(done), squared, result);
  }
  results.emplace_back(std::move(result));
  return true;
}

}  // namespace outboard
