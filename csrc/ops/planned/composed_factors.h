// SPDX-License-Identifier: BSD-3-Clause
// Matrix factorizations and powers for which the values decide whether the call raises, or how long
// it takes. As on any device, the caller waits for the values.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Run a call without its `check_errors`, and raise the error that its last result reports.
bool checked_factors(const Call& call, torch::jit::Stack& results);

// Run aten::cholesky, which raises for a matrix that is not positive-definite.
bool checked_cholesky(const Call& call, torch::jit::Stack& results);

// Run aten::linalg_lstsq.out, which torch calls, of float32 or float64: by reflections for the
// driver "gels", which requires full rank, and otherwise by singular values. Both return the
// solution of least norm. The default driver is "gelsy", as on the CPU.
bool least_squares(const Call& call, torch::jit::Stack& results);

// Run aten::linalg_matrix_exp of float32 or float64: a polynomial of the matrix divided by a power
// of two, squared accordingly. The caller waits for the greatest number of squarings.
bool matrix_exponential(const Call& call, torch::jit::Stack& results);

}  // namespace outboard
