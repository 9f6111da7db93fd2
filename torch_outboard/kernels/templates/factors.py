# SPDX-License-Identifier: BSD-3-Clause
"""Matrix factorizations by elimination: LU with partial pivoting, and Cholesky.

A step eliminates a column: the items find or compute the pivot, divide the column, and subtract its products from the
columns after it.
"""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from torch_outboard.kernels.templates.call import TemplateCall
from torch_outboard.kernels.templates.matrices import by_columns, check, defined, least, of_group

__all__ = ["cholesky", "cholesky_factor", "lu", "lu_factor"]


def _infos(a: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape[0], dtype=torch.int32)


def _lu(a: torch.Tensor) -> Any:
    count = least(a.shape[1], a.shape[2])
    return by_columns(a, *a.shape[1:]), a.new_empty(a.shape[0], count, dtype=torch.int32), _infos(a)


# Return L and U in one matrix, the swapped rows (counted from 1), and the first step without a
# pivot (counted from 1), or 0.
lu_factor = defined("lu_factor(Tensor a) -> (Tensor, Tensor, Tensor)", _lu)

# Return L, and the first step whose pivot is not positive (counted from 1), or 0. Only the lower
# triangle of `a` is used.
cholesky_factor = defined(
    "cholesky_factor(Tensor a) -> (Tensor, Tensor)", lambda a: (by_columns(a, *a.shape[1:]), _infos(a))
)


def lu(call: TemplateCall) -> list[str | None]:
    matrix = call.tensor("a")
    check(call, matrix)
    factors, pivots, info = (call.allocate(tensor) for tensor in call.results if tensor is not None)
    batch, rows, columns = matrix.size
    text = of_group(
        call,
        "ob_lu",
        {"given": matrix},
        {"factors": factors, "pivots": pivots, "info": info},
        batch,
        {"most_of": "$REAL", "row_of": "int"},
        {"SHARE_PIVOT": _SHARE_PIVOT},
    )
    text.size("ROWS", rows)
    text.size("COLUMNS", columns)
    text.size("STEPS", sympy.Min(rows, columns))
    call.launch(text.fill(_LU))
    return [factors.name, pivots.name, info.name]


def cholesky(call: TemplateCall) -> list[str | None]:
    matrix = call.tensor("a")
    check(call, matrix)
    factor, info = (call.allocate(tensor) for tensor in call.results if tensor is not None)
    text = of_group(call, "ob_cholesky", {"given": matrix}, {"factor": factor, "info": info}, matrix.size[0])
    text.size("ROWS", matrix.size[1])
    call.launch(text.fill(_CHOLESKY))
    return [factor.name, info.name]


_SHARE_PIVOT = """\
    most_of[me] = most;
    row_of[me] = (int)pivot_row;
    OB_BARRIER;
    for (int other = 0; other < $GROUP; ++other) {
      const $REAL value = most_of[other];
      const ob_i64 row = row_of[other];
      if (value > most || (value == most && row < pivot_row)) {
        most = value;
        pivot_row = row;
      }
    }
"""

_LU = """\
$COPY
  ob_i64 failed = 0;
  for (ob_i64 step = 0; step < $STEPS; ++step) {
    $WRITTEN left = own + step * $FACTORS_COLUMN;
    $REAL most = -1;
    ob_i64 pivot_row = step;
    for (ob_i64 row = step + me; row < $ROWS; row += $GROUP) {
      const $REAL value = $ABS(left[row * $FACTORS_ROW]);
      if (value > most) {
        most = value;
        pivot_row = row;
      }
    }
$SHARE_PIVOT
    if (me == 0) pivots[matrix * $PIVOTS_BATCH + step * $PIVOTS_ROW] = (int)pivot_row + 1;
    if (pivot_row != step) {
      for (ob_i64 column = me; column < $COLUMNS; column += $GROUP) {
        const ob_i64 first = step * $FACTORS_ROW + column * $FACTORS_COLUMN;
        const ob_i64 second = pivot_row * $FACTORS_ROW + column * $FACTORS_COLUMN;
        const $REAL kept = own[first];
        own[first] = own[second];
        own[second] = kept;
      }
    }
    $SYNC
    const $REAL pivot = left[step * $FACTORS_ROW];
    if (pivot == 0 && failed == 0) failed = step + 1;
    if (pivot != 0)
      for (ob_i64 row = step + 1 + me; row < $ROWS; row += $GROUP) left[row * $FACTORS_ROW] /= pivot;
    $SYNC
    for (ob_i64 column = step + 1 + me / $LANES; column < $COLUMNS; column += $GROUP / $LANES) {
      $WRITTEN target = own + column * $FACTORS_COLUMN;
      const $REAL factor = target[step * $FACTORS_ROW];
      for (ob_i64 row = step + 1 + me % $LANES; row < $ROWS; row += $LANES)
        target[row * $FACTORS_ROW] -= left[row * $FACTORS_ROW] * factor;
    }
    $SYNC
  }
  if (me == 0) info[matrix * $INFO_BATCH] = (int)failed;
"""

_CHOLESKY = """\
  $BEGIN
  $WRITTEN own = factor + matrix * $FACTOR_BATCH;
  for (ob_i64 at = me; at < $ROWS * $ROWS; at += $GROUP) {
    const ob_i64 row = at % $ROWS, column = at / $ROWS;
    own[row * $FACTOR_ROW + column * $FACTOR_COLUMN] =
        row < column ? 0 : given[matrix * $GIVEN_BATCH + row * $GIVEN_ROW + column * $GIVEN_COLUMN];
  }
  $SYNC
  ob_i64 failed = 0;
  for (ob_i64 step = 0; step < $ROWS; ++step) {
    $WRITTEN left = own + step * $FACTOR_COLUMN;
    const $REAL square = left[step * $FACTOR_ROW];
    if (!(square > 0) && failed == 0) failed = step + 1;
    // After a failure, nothing is left to do.
    const ob_i64 end = failed == 0 ? $ROWS : step;
    const $REAL root = $SQRT(square);
    $SYNC
    for (ob_i64 row = step + me; row < end; row += $GROUP)
      left[row * $FACTOR_ROW] = row == step ? root : left[row * $FACTOR_ROW] / root;
    $SYNC
    for (ob_i64 column = step + 1 + me / $LANES; column < end; column += $GROUP / $LANES) {
      $WRITTEN target = own + column * $FACTOR_COLUMN;
      const $REAL value = left[column * $FACTOR_ROW];
      for (ob_i64 row = column + me % $LANES; row < end; row += $LANES)
        target[row * $FACTOR_ROW] -= left[row * $FACTOR_ROW] * value;
    }
    $SYNC
  }
  if (me == 0) info[matrix * $INFO_BATCH] = (int)failed;
"""
