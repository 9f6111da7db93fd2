// SPDX-License-Identifier: BSD-3-Clause
// Factorizations and triangular solves of matrices that are too large for a kernel, which has one
// group per matrix. They are computed block by block, with matrix products. Each function returns
// false for a matrix that a kernel can process, and if the host can access the memory, because the
// CPU's library is then faster.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// aten::linalg_cholesky_ex, aten::linalg_lu_factor_ex. They wait if they have to raise errors.
bool cholesky_ex(const Call& call, torch::jit::Stack& results);
bool lu_factor_ex(const Call& call, torch::jit::Stack& results);

// aten::linalg_solve_triangular: the blocks on the diagonal are inverted, all by one kernel.
bool solve_triangular(const Call& call, torch::jit::Stack& results);

// Operators built on these: aten::linalg_lu_solve, aten::_linalg_solve_ex, aten::linalg_inv_ex,
// aten::_linalg_det, aten::_linalg_slogdet, aten::_cholesky_solve_helper, aten::cholesky_inverse.
bool lu_solve(const Call& call, torch::jit::Stack& results);
bool solve_ex(const Call& call, torch::jit::Stack& results);
bool inverse_ex(const Call& call, torch::jit::Stack& results);
bool determinant(const Call& call, torch::jit::Stack& results);
bool log_determinant(const Call& call, torch::jit::Stack& results);
bool cholesky_solve(const Call& call, torch::jit::Stack& results);
bool cholesky_inverse(const Call& call, torch::jit::Stack& results);

}  // namespace outboard
