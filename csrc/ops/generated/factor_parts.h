// SPDX-License-Identifier: BSD-3-Clause
// Factors of matrices whose values decide whether the call raises. As on any device, the caller
// waits for the values.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Run a call with `check_errors` without it, and raise what its last result reports.
bool checked_factors(const Call& call, torch::jit::Stack& results);

// Run aten::cholesky, which raises for a matrix that is not positive-definite.
bool checked_cholesky(const Call& call, torch::jit::Stack& results);

// Raise if aten::_linalg_eigh or aten::_linalg_svd is given infinities or NaNs, with which the
// CPU's library does not converge. Otherwise return false: a plan runs the call.
bool refuse_endless_factors(const Call& call, torch::jit::Stack& results);

}  // namespace outboard
