# SPDX-License-Identifier: BSD-3-Clause
"""Triangular systems by substitution, with one column per item, and row permutations, with one permutation per item."""

from __future__ import annotations

from typing import Any

import torch

from torch_outboard.kernels.templates.call import TemplateCall
from torch_outboard.kernels.templates.matrices import by_columns, check, defined, of_items

__all__ = ["permutation", "permute", "permuted_rows", "rows_of_pivots", "substitute", "substitution"]

# Solve a x = b for a triangular matrix a.
substitution = defined(
    "substitution(Tensor a, Tensor b, bool upper, bool unitriangular) -> Tensor",
    lambda a, b, *_: by_columns(b, *b.shape[1:]),
)

# Return the source row of each row after the swaps of `pivots`, or the row to which each one moved.
rows_of_pivots = defined(
    "rows_of_pivots(Tensor pivots, SymInt rows, bool inverse) -> Tensor",
    lambda pivots, rows, _: pivots.new_empty(pivots.shape[0], rows, dtype=torch.int64),
)

# Return the rows of `b` that `rows` names.
permuted_rows = defined("permuted_rows(Tensor b, Tensor rows) -> Tensor", lambda b, _: by_columns(b, *b.shape[1:]))


def substitute(call: TemplateCall) -> list[str | None]:
    triangle, right = call.tensor("a"), call.tensor("b")
    check(call, triangle)
    if right.dtype != triangle.dtype:
        check(call, triangle, right)
    result = _result(call)
    batch, rows, columns = right.size
    text = of_items(call, "ob_substitute", {"triangle": triangle, "right": right}, {"result": result}, batch * columns)
    text.size("ROWS", rows)
    text.size("COLUMNS", columns)
    is_upper = call.arguments["upper"]
    text.words["STEP"] = "$ROWS - 1 - turn" if is_upper else "turn"
    text.words["FIRST"] = "0" if is_upper else "step + 1"
    text.words["LAST"] = "step" if is_upper else "$ROWS"
    text.words["DIVIDE"] = "" if call.arguments["unitriangular"] else _DIVIDE
    call.launch(text.fill(_SUBSTITUTE))
    return [result.name]


def permutation(call: TemplateCall) -> list[str | None]:
    pivots, result = call.tensor("pivots"), _result(call)
    text = of_items(call, "ob_permutation", {"pivots": pivots}, {"result": result}, pivots.size[0])
    text.size("ROWS", result.size[1])
    text.size("STEPS", pivots.size[1])
    is_inverse = call.arguments["inverse"]
    text.words["STEP"] = "$STEPS - 1 - turn" if is_inverse else "turn"
    call.launch(text.fill(_PERMUTATION))
    return [result.name]


def permute(call: TemplateCall) -> list[str | None]:
    matrix, rows, result = call.tensor("b"), call.tensor("rows"), _result(call)
    batch, count, columns = matrix.size
    text = of_items(call, "ob_permute", {"given": matrix, "rows": rows}, {"result": result}, batch * columns)
    text.words["HEIGHT"] = text.kernel.number("height", count)
    text.size("COLUMNS", columns)
    call.launch(text.fill(_PERMUTE))
    return [result.name]


def _result(call: TemplateCall) -> Any:
    (layout,) = call.results
    assert layout is not None
    return call.allocate(layout)


_DIVIDE = """\
    own[step * $RESULT_ROW] /= left[step * $TRIANGLE_ROW];
"""

_SUBSTITUTE = """\
  $BEGIN
  const ob_i64 matrix = item / $COLUMNS, column = item % $COLUMNS;
  $WRITTEN own = result + matrix * $RESULT_BATCH + column * $RESULT_COLUMN;
  for (ob_i64 row = 0; row < $ROWS; ++row)
    own[row * $RESULT_ROW] = right[matrix * $RIGHT_BATCH + row * $RIGHT_ROW + column * $RIGHT_COLUMN];
  for (ob_i64 turn = 0; turn < $ROWS; ++turn) {
    const ob_i64 step = $STEP;
    $READ left = triangle + matrix * $TRIANGLE_BATCH + step * $TRIANGLE_COLUMN;
$DIVIDE
    const $REAL value = own[step * $RESULT_ROW];
    for (ob_i64 row = $FIRST; row < $LAST; ++row) own[row * $RESULT_ROW] -= left[row * $TRIANGLE_ROW] * value;
  }
"""

_PERMUTE = """\
  $BEGIN
  const ob_i64 matrix = item / $COLUMNS, column = item % $COLUMNS;
  for (ob_i64 row = 0; row < $HEIGHT; ++row) {
    const ob_i64 from = rows[matrix * $ROWS_BATCH + row * $ROWS_ROW];
    result[matrix * $RESULT_BATCH + row * $RESULT_ROW + column * $RESULT_COLUMN] =
        given[matrix * $GIVEN_BATCH + from * $GIVEN_ROW + column * $GIVEN_COLUMN];
  }
"""

# A pivot past the last row swaps nothing.
_PERMUTATION = """\
  $BEGIN
  for (ob_i64 row = 0; row < $ROWS; ++row) result[item * $RESULT_BATCH + row * $RESULT_ROW] = row;
  for (ob_i64 turn = 0; turn < $STEPS; ++turn) {
    const ob_i64 step = $STEP;
    const ob_i64 other = pivots[item * $PIVOTS_BATCH + step * $PIVOTS_ROW] - 1;
    if (other < 0 || other >= $ROWS) continue;
    const ob_i64 first = item * $RESULT_BATCH + step * $RESULT_ROW, second = item * $RESULT_BATCH + other * $RESULT_ROW;
    const ob_i64 kept = result[first];
    result[first] = result[second];
    result[second] = kept;
  }
"""
