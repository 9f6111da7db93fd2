# SPDX-License-Identifier: BSD-3-Clause
"""QR by Householder reflections, and products with the reflections.

A step of the factorization reflects a column to a multiple of the first unit vector: v = (1, v2, …), H = 1 - tau v vᵀ.
Its items share the sums of that column, and each then reflects later columns. R and the vectors share a matrix.
"""

from __future__ import annotations

import sympy  # type: ignore[import-untyped]

from torch_outboard.kernels.templates.call import TemplateCall
from torch_outboard.kernels.templates.matrices import by_columns, check, defined, least, of_group, of_items

__all__ = ["factor", "multiply", "reflected", "reflections"]

# Return a matrix with R and the vectors of the reflections, and the factors tau.
reflections = defined(
    "reflections(Tensor a) -> (Tensor, Tensor)",
    lambda a: (by_columns(a, *a.shape[1:]), a.new_empty(a.shape[0], least(a.shape[1], a.shape[2]))),
)

# Return the product of all reflections, or of its transpose, with the given matrices.
reflected = defined(
    "reflected(Tensor vectors, Tensor tau, Tensor c, bool transpose) -> Tensor",
    lambda vectors, tau, c, *_: by_columns(c, *c.shape[1:]),
)


def factor(call: TemplateCall) -> list[str | None]:
    matrix = call.tensor("a")
    check(call, matrix)
    factors, tau = (call.allocate(tensor) for tensor in call.results if tensor is not None)
    batch, rows, columns = matrix.size
    text = of_group(
        call,
        "ob_reflections",
        {"given": matrix},
        {"factors": factors, "tau": tau},
        batch,
        {"most_of": "$REAL", "part_of": "$REAL"},
        {"SHARE_MOST": _SHARE_MOST, "SHARE_SUM": _SHARE_SUM},
    )
    text.size("ROWS", rows)
    text.size("COLUMNS", columns)
    text.size("STEPS", sympy.Min(rows, columns))
    call.launch(text.fill(_FACTOR))
    return [factors.name, tau.name]


def multiply(call: TemplateCall) -> list[str | None]:
    vectors, tau, matrix = call.tensor("vectors"), call.tensor("tau"), call.tensor("c")
    check(call, vectors, matrix)
    (layout,) = call.results
    assert layout is not None
    result = call.allocate(layout)
    batch, rows, columns = matrix.size
    read = {"vectors": vectors, "tau": tau, "given": matrix}
    text = of_items(call, "ob_reflected", read, {"result": result}, batch * columns)
    text.size("ROWS", rows)
    text.size("COLUMNS", columns)
    text.size("STEPS", tau.size[1])
    text.words["STEP"] = "turn" if call.arguments["transpose"] else "$STEPS - 1 - turn"
    call.launch(text.fill(_MULTIPLY))
    return [result.name]


_SHARE_MOST = """\
    if (me < $LANES) most_of[me] = most;
    OB_BARRIER;
    for (int lane = 0; lane < $LANES; ++lane)
      if (most_of[lane] > most) most = most_of[lane];
"""

_SHARE_SUM = """\
    if (me < $LANES) part_of[me] = sum;
    OB_BARRIER;
    sum = 0;
    for (int lane = 0; lane < $LANES; ++lane) sum += part_of[lane];
"""

# Divide the elements by the greatest before squaring, to avoid overflow.
_FACTOR = """\
$COPY
  for (ob_i64 step = 0; step < $STEPS; ++step) {
    $WRITTEN left = own + step * $FACTORS_COLUMN;
    $REAL most = 0, sum = 0;
    const ob_i64 first = me < $LANES ? step + 1 + me : $ROWS;
    for (ob_i64 row = first; row < $ROWS; row += $LANES) {
      const $REAL value = $ABS(left[row * $FACTORS_ROW]);
      if (value > most) most = value;
    }
$SHARE_MOST
    const $REAL scale = most > 0 ? most : 1;
    for (ob_i64 row = first; row < $ROWS; row += $LANES) {
      const $REAL value = left[row * $FACTORS_ROW] / scale;
      sum += value * value;
    }
$SHARE_SUM
    const $REAL alpha = left[step * $FACTORS_ROW];
    const $REAL size = $ABS(alpha) > scale ? $ABS(alpha) : scale;
    const $REAL below = scale * $SQRT(sum) / size;
    const $REAL length = size * $SQRT(alpha / size * (alpha / size) + below * below);
    // Without elements below, there is nothing to reflect.
    const $REAL beta = sum == 0 ? alpha : alpha > 0 ? -length : length;
    const $REAL factor = sum == 0 ? 0 : (beta - alpha) / beta;
    const $REAL divisor = sum == 0 ? 1 : alpha - beta;
    $SYNC
    if (me == 0) {
      tau[matrix * $TAU_BATCH + step * $TAU_ROW] = factor;
      left[step * $FACTORS_ROW] = beta;
    }
    for (ob_i64 row = step + 1 + me; row < $ROWS; row += $GROUP) left[row * $FACTORS_ROW] /= divisor;
    $SYNC
    for (ob_i64 column = step + 1 + me; column < $COLUMNS; column += $GROUP) {
      $WRITTEN target = own + column * $FACTORS_COLUMN;
      $REAL product = target[step * $FACTORS_ROW];
      for (ob_i64 row = step + 1; row < $ROWS; ++row) product += left[row * $FACTORS_ROW] * target[row * $FACTORS_ROW];
      product *= factor;
      target[step * $FACTORS_ROW] -= product;
      for (ob_i64 row = step + 1; row < $ROWS; ++row) target[row * $FACTORS_ROW] -= left[row * $FACTORS_ROW] * product;
    }
    $SYNC
  }
"""

_MULTIPLY = """\
  $BEGIN
  const ob_i64 matrix = item / $COLUMNS, column = item % $COLUMNS;
  $WRITTEN own = result + matrix * $RESULT_BATCH + column * $RESULT_COLUMN;
  for (ob_i64 row = 0; row < $ROWS; ++row)
    own[row * $RESULT_ROW] = given[matrix * $GIVEN_BATCH + row * $GIVEN_ROW + column * $GIVEN_COLUMN];
  for (ob_i64 turn = 0; turn < $STEPS; ++turn) {
    const ob_i64 step = $STEP;
    $READ left = vectors + matrix * $VECTORS_BATCH + step * $VECTORS_COLUMN;
    $REAL product = own[step * $RESULT_ROW];
    for (ob_i64 row = step + 1; row < $ROWS; ++row) product += left[row * $VECTORS_ROW] * own[row * $RESULT_ROW];
    product *= tau[matrix * $TAU_BATCH + step * $TAU_ROW];
    own[step * $RESULT_ROW] -= product;
    for (ob_i64 row = step + 1; row < $ROWS; ++row) own[row * $RESULT_ROW] -= left[row * $VECTORS_ROW] * product;
  }
"""
