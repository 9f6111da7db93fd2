// SPDX-License-Identifier: BSD-3-Clause
#include "ops/planned/composed_blocks.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_lu_factor_ex.h>
#include <ATen/ops/linalg_lu_solve.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/lu_unpack.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/planned/composed_factors.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// Rows and columns that a group's kernel takes: those of kernels/templates/matrices.py.
#define OB_MATRIX_LIMITS(largest, longest) constexpr int64_t kOfGroup = largest, kLongest = longest;
#include <built/book.inc>
#undef OB_MATRIX_LIMITS
// The size of triangular blocks, and the columns of a panel with pivots, whose group goes through
// all rows. Small blocks leave more work to matrix products, but each step takes several launches.
constexpr int64_t kBlock = kOfGroup, kPanel = 64;

bool is_factored_by_blocks(const at::Tensor& a) {
  return a.dim() >= 2 && a.numel() > 0 && (a.scalar_type() == c10::kFloat || a.scalar_type() == c10::kDouble) &&
         a.size(-1) == a.size(-2) && a.size(-1) > kOfGroup && !reaches_memory(a.device().index());
}

bool fits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && b.dim() >= 2 && b.numel() > 0;
}

// Return new memory whose columns are contiguous, as torch returns most matrices.
at::Tensor by_columns(c10::IntArrayRef sizes, const at::TensorOptions& options) {
  std::vector<int64_t> turned = sizes.vec();
  std::swap(turned[turned.size() - 1], turned[turned.size() - 2]);
  return at::empty(turned, options).mT();
}

at::Tensor copied_by_columns(const at::Tensor& a, c10::IntArrayRef sizes) {
  at::Tensor result = by_columns(sizes, a.options());
  result.copy_(a);
  return result;
}

at::Tensor part(const at::Tensor& a, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  return a.narrow(-2, row, rows).narrow(-1, column, columns);
}

at::Tensor of_batch(const at::Tensor& matrix, c10::IntArrayRef batch) {
  std::vector<int64_t> sizes = batch.vec();
  sizes.insert(sizes.end(), matrix.sizes().begin(), matrix.sizes().end());
  return matrix.expand(sizes);
}

at::Tensor identity(const at::Tensor& like, int64_t size) {
  return of_batch(at::eye(size, like.options()), like.sizes().slice(0, static_cast<size_t>(like.dim() - 2)));
}

void subtract_product(at::Tensor from, const at::Tensor& a, const at::Tensor& b) {
  if (from.dim() == 2 && a.dim() == 2) {
    from.addmm_(a, b, /*beta=*/1, /*alpha=*/-1);
  } else {
    from.sub_(at::matmul(a, b));
  }
}

// Return the first error of a block, counted from the matrix's first row.
at::Tensor first_info(const at::Tensor& before, const at::Tensor& of_block, int64_t row) {
  return at::where(before.eq(0).logical_and(of_block.ne(0)), of_block.add(row), before);
}

at::Tensor make_zero_info(const at::Tensor& a) {
  return at::zeros(a.sizes().slice(0, static_cast<size_t>(a.dim() - 2)), a.options().dtype(c10::kInt));
}

std::tuple<at::Tensor, at::Tensor> factored_cholesky(const at::Tensor& a, bool upper) {
  const int64_t count = a.size(-1);
  at::Tensor factor = copied_by_columns(upper ? a.mT() : a, a.sizes());
  at::Tensor info = make_zero_info(a);
  for (int64_t row = 0; row < count; row += kBlock) {
    const int64_t rows = std::min(kBlock, count - row), rest = count - row - rows;
    at::Tensor corner = part(factor, row, rows, row, rows);
    auto [of_corner, failed] = at::linalg_cholesky_ex(corner);
    corner.copy_(of_corner);
    info = first_info(info, failed, row);
    if (rest > 0) {
      at::Tensor below = part(factor, row + rows, rest, row, rows);
      const at::Tensor inverse = at::linalg_solve_triangular(of_corner, identity(of_corner, rows), /*upper=*/false);
      below.copy_(at::matmul(below, inverse.mT()));
      subtract_product(part(factor, row + rows, rest, row + rows, rest), below, below.mT());
    }
  }
  factor.tril_();
  return {upper ? copied_by_columns(factor.mT(), a.sizes()) : factor, info};
}

// Solve a X = b for a triangle `a`.
at::Tensor solved_triangle(const at::Tensor& a, const at::Tensor& b, bool upper, bool is_unit) {
  const int64_t count = a.size(-1), whole = count / kBlock;
  const c10::IntArrayRef of_a = a.sizes().slice(0, static_cast<size_t>(a.dim() - 2));
  const c10::IntArrayRef of_b = b.sizes().slice(0, static_cast<size_t>(b.dim() - 2));
  std::vector<int64_t> sizes = at::infer_size(of_a, of_b);
  sizes.insert(sizes.end(), {count, b.size(-1)});
  at::Tensor result = copied_by_columns(b, sizes);

  std::vector<at::Tensor> corners;
  for (int64_t block = 0; block < whole; ++block) {
    corners.push_back(part(a, block * kBlock, kBlock, block * kBlock, kBlock));
  }
  const auto inverted = [&](const at::Tensor& triangles) {
    return at::linalg_solve_triangular(triangles, identity(triangles, triangles.size(-1)), upper, /*left=*/true,
                                       is_unit);
  };
  std::vector<at::Tensor> inverses = inverted(at::stack(corners, 0)).unbind(0);
  if (whole * kBlock < count) {
    const int64_t begin = whole * kBlock;
    inverses.push_back(inverted(part(a, begin, count - begin, begin, count - begin)));
  }
  const auto blocks = static_cast<int64_t>(inverses.size());
  for (int64_t step = 0; step < blocks; ++step) {
    const int64_t block = upper ? blocks - 1 - step : step, row = block * kBlock;
    const int64_t rows = std::min(kBlock, count - row);
    at::Tensor own = result.narrow(-2, row, rows);
    own.copy_(at::matmul(inverses[static_cast<size_t>(block)], own));
    const int64_t rest = upper ? 0 : row + rows, length = upper ? row : count - row - rows;
    if (length > 0) {
      subtract_product(result.narrow(-2, rest, length), part(a, rest, length, row, rows), own);
    }
  }
  return result;
}

// Return where the rows of a matrix come from after the swaps of `pivots`.
at::Tensor sources_of(const at::Tensor& factors, const at::Tensor& pivots) {
  const at::Tensor permutation =
      std::get<0>(at::lu_unpack(factors, pivots, /*unpack_data=*/false, /*unpack_pivots=*/true));
  return permutation.argmax(-2);
}

at::Tensor gather_rows_at(const at::Tensor& a, const at::Tensor& sources) {
  return a.gather(-2, sources.unsqueeze(-1).expand(a.sizes()));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> factored_lu(const at::Tensor& a) {
  const int64_t count = a.size(-1);
  at::Tensor factors = copied_by_columns(a, a.sizes());
  at::Tensor pivots = at::empty(a.sizes().slice(0, static_cast<size_t>(a.dim() - 1)), a.options().dtype(c10::kInt));
  at::Tensor info = make_zero_info(a);
  for (int64_t row = 0; row < count; row += kPanel) {
    const int64_t width = std::min(kPanel, count - row), rows = count - row, rest = rows - width;
    at::Tensor panel = part(factors, row, rows, row, width);
    auto [of_panel, swaps, failed] = at::linalg_lu_factor_ex(panel);
    pivots.narrow(-1, row, width).copy_(swaps.add(row));
    info = first_info(info, failed, row);
    const at::Tensor sources = sources_of(of_panel, swaps);
    panel.copy_(of_panel);
    if (row > 0) {
      at::Tensor left = part(factors, row, rows, 0, row);
      left.copy_(gather_rows_at(left, sources));
    }
    if (rest > 0) {
      at::Tensor right = part(factors, row, rows, row + width, rest);
      right.copy_(gather_rows_at(right, sources));
      at::Tensor above = right.narrow(-2, 0, width);
      above.copy_(at::linalg_solve_triangular(of_panel.narrow(-2, 0, width), above, /*upper=*/false, /*left=*/true,
                                              /*unitriangular=*/true));
      subtract_product(right.narrow(-2, width, rest), of_panel.narrow(-2, width, rest), above);
    }
  }
  return {factors, pivots, info};
}

// Return true if kernels support the length of the matrix's panels.
bool has_short_panels(const at::Tensor& a) {
  return is_factored_by_blocks(a) && a.size(-1) <= kLongest;
}

// Factor as torch's own formula of the gradient does.
std::tuple<at::Tensor, at::Tensor, at::Tensor> factored_for_determinant(const at::Tensor& a) {
  return at::linalg_lu_factor_ex(a.is_contiguous() ? a.mT() : a);
}

// Return -1 for an odd number of swaps, else 1.
at::Tensor parity(const at::Tensor& pivots, c10::ScalarType dtype) {
  const at::Tensor swaps = pivots.ne(at::arange(1, pivots.size(-1) + 1, pivots.options())).sum(-1);
  return swaps.remainder(2).mul(-2).add(1).to(dtype);
}

at::Tensor solved_by_cholesky(const at::Tensor& b, const at::Tensor& factor, bool upper) {
  const at::Tensor low = upper ? factor.mT() : factor;
  const at::Tensor half = at::linalg_solve_triangular(low, b, /*upper=*/false);
  return at::linalg_solve_triangular(low.mT(), half, /*upper=*/true);
}

}  // namespace

bool cholesky_ex(const Call& call, torch::jit::Stack& results) {
  if (checked_factors(call, results)) {
    return true;
  }
  const at::Tensor& self = call.arg(0).toTensor();
  if (!is_factored_by_blocks(self)) {
    return false;
  }
  auto [factor, info] = factored_cholesky(self, /*upper=*/call.arg(1).toBool());
  results = {std::move(factor), std::move(info)};
  return true;
}

bool lu_factor_ex(const Call& call, torch::jit::Stack& results) {
  if (checked_factors(call, results)) {
    return true;
  }
  const at::Tensor& self = call.arg(0).toTensor();
  if (!has_short_panels(self) || !call.arg(1).toBool()) {  // without pivots
    return false;
  }
  auto [factors, pivots, info] = factored_lu(self);
  results = {std::move(factors), std::move(pivots), std::move(info)};
  return true;
}

bool solve_triangular(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& a = call.arg(0).toTensor();
  const at::Tensor& b = call.arg(1).toTensor();
  const bool upper = call.arg(2).toBool(), left = call.arg(3).toBool(), is_unit = call.arg(4).toBool();
  if (!is_factored_by_blocks(a) || !fits(a, b) || b.size(left ? -2 : -1) != a.size(-1)) {
    return false;
  }
  if (left) {
    results.emplace_back(solved_triangle(a, b, upper, is_unit));
  } else {
    const at::Tensor solved = solved_triangle(a.mT(), b.mT(), !upper, is_unit).mT();
    results.emplace_back(copied_by_columns(solved, solved.sizes()));
  }
  return true;
}

bool lu_solve(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& factors = call.arg(0).toTensor();
  const at::Tensor& pivots = call.arg(1).toTensor();
  const at::Tensor& b = call.arg(2).toTensor();
  const bool left = call.arg(3).toBool(), adjoint = call.arg(4).toBool();
  if (!has_short_panels(factors) || !fits(factors, b) || b.size(left ? -2 : -1) != factors.size(-1)) {
    return false;
  }
  const at::Tensor right = left ? b : b.mT();
  const at::Tensor sources = sources_of(factors, pivots);
  const c10::IntArrayRef of_a = factors.sizes().slice(0, static_cast<size_t>(factors.dim() - 2));
  const c10::IntArrayRef of_b = right.sizes().slice(0, static_cast<size_t>(right.dim() - 2));
  const std::vector<int64_t> batch = at::infer_size(of_a, of_b);
  std::vector<int64_t> sizes = batch, of_rows = batch;
  sizes.insert(sizes.end(), {right.size(-2), right.size(-1)});
  of_rows.push_back(right.size(-2));
  const at::Tensor wide = right.expand(sizes), rows = sources.expand(of_rows);
  at::Tensor solved;
  if (adjoint != !left) {
    const at::Tensor half = at::linalg_solve_triangular(factors.mT(), wide, /*upper=*/false);
    const at::Tensor swapped = at::linalg_solve_triangular(factors.mT(), half, /*upper=*/true, /*left=*/true,
                                                           /*unitriangular=*/true);
    solved = by_columns(sizes, swapped.options());
    solved.scatter_(-2, rows.unsqueeze(-1).expand(sizes), swapped);
  } else {
    const at::Tensor half = at::linalg_solve_triangular(factors, gather_rows_at(wide, rows), /*upper=*/false,
                                                        /*left=*/true, /*unitriangular=*/true);
    solved = at::linalg_solve_triangular(factors, half, /*upper=*/true);
  }
  results.emplace_back(left ? solved : solved.mT());
  return true;
}

bool solve_ex(const Call& call, torch::jit::Stack& results) {
  if (checked_factors(call, results)) {
    return true;
  }
  const at::Tensor& a = call.arg(0).toTensor();
  const at::Tensor& b = call.arg(1).toTensor();
  if (!has_short_panels(a) || a.scalar_type() != b.scalar_type() || a.device() != b.device() || b.numel() == 0) {
    return false;
  }
  const c10::IntArrayRef lines = a.sizes().slice(0, static_cast<size_t>(a.dim() - 1));
  const bool is_vector = b.dim() == 1 || (b.dim() == a.dim() - 1 && b.sizes() == lines);
  const at::Tensor right = is_vector ? b.unsqueeze(-1) : b;
  // A vector is a column, whichever side it is on.
  const bool left = call.arg(2).toBool() || is_vector;
  if (right.size(left ? -2 : -1) != a.size(-1)) {
    return false;  // the operator itself raises
  }
  auto [factors, pivots, info] = at::linalg_lu_factor_ex(a);
  at::Tensor solved = at::linalg_lu_solve(factors, pivots, right, left);
  if (is_vector) {
    solved = solved.squeeze(-1);
    // The CPU's batch of vectors lies as a matrix does.
    solved = solved.dim() > 1 ? copied_by_columns(solved, solved.sizes()) : solved;
  }
  results = {std::move(solved), std::move(factors), std::move(pivots), std::move(info)};
  return true;
}

bool inverse_ex(const Call& call, torch::jit::Stack& results) {
  if (checked_factors(call, results)) {
    return true;
  }
  const at::Tensor& self = call.arg(0).toTensor();
  if (!has_short_panels(self)) {
    return false;
  }
  auto [factors, pivots, info] = at::linalg_lu_factor_ex(self);
  results = {at::linalg_lu_solve(factors, pivots, identity(self, self.size(-1))), std::move(info)};
  return true;
}

bool determinant(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  if (!has_short_panels(self)) {
    return false;
  }
  auto [factors, pivots, info] = factored_for_determinant(self);
  at::Tensor result = factors.diagonal(0, -2, -1).prod(-1).mul(parity(pivots, self.scalar_type()));
  results = {std::move(result), std::move(factors), std::move(pivots)};
  return true;
}

bool log_determinant(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  if (!has_short_panels(self)) {
    return false;
  }
  auto [factors, pivots, info] = factored_for_determinant(self);
  const at::Tensor diagonal = factors.diagonal(0, -2, -1);
  at::Tensor sign = diagonal.sign().prod(-1).mul(parity(pivots, self.scalar_type()));
  results = {std::move(sign), diagonal.abs().log().sum(-1), std::move(factors), std::move(pivots)};
  return true;
}

bool cholesky_solve(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& b = call.arg(0).toTensor();
  const at::Tensor& factor = call.arg(1).toTensor();
  if (!is_factored_by_blocks(factor) || !fits(factor, b)) {
    return false;
  }
  results.emplace_back(solved_by_cholesky(b, factor, call.arg(2).toBool()));
  return true;
}

bool cholesky_inverse(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& factor = call.arg(0).toTensor();
  if (!is_factored_by_blocks(factor)) {
    return false;
  }
  results.emplace_back(solved_by_cholesky(identity(factor, factor.size(-1)), factor, call.arg(1).toBool()));
  return true;
}

}  // namespace outboard
