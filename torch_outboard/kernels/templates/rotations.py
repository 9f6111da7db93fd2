# SPDX-License-Identifier: BSD-3-Clause
"""One-sided Jacobi: rotations of pairs of columns until all columns are orthogonal.

The rotated matrix A V has columns whose lengths are the singular values of A. A round rotates pairs that have no column
in common, one pair per item. A sweep over all pairs takes as many rounds as a round-robin tournament. The number of
sweeps is bounded.
"""

from __future__ import annotations

import torch

from torch_outboard.kernels.templates.call import Kernel, TemplateCall, Tensor
from torch_outboard.kernels.templates.matrices import by_columns, check, defined, of_group, of_items

__all__ = ["orthogonal_columns", "rotate"]

_SWEEPS = 40


def _meta(a: torch.Tensor, _: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    batch, rows, columns = a.shape
    values, failed = a.new_empty(batch, columns), a.new_empty(batch, dtype=torch.int32)
    return by_columns(a, rows, columns), values, by_columns(a, columns, columns), failed


# Return the normalized columns of A V, their lengths in descending order, V, and 1 for a matrix
# whose columns did not become orthogonal, else 0. A column of length 0 stays 0.
#
# With a symmetric matrix in `symmetric`, of which A is a positive definite shift, the values are
# the eigenvalues of that matrix in ascending order, and V has the eigenvectors.
orthogonal_columns = defined(
    "orthogonal_columns(Tensor a, Tensor? symmetric) -> (Tensor, Tensor, Tensor, Tensor)", _meta
)


def rotate(call: TemplateCall) -> list[str | None]:
    matrix = call.tensor("a")
    check(call, matrix)
    rotated, values, right, failed = (call.allocate(tensor) for tensor in call.results if tensor is not None)
    batch, rows, columns = matrix.size
    work, turned = call.allocate(rotated), call.allocate(right)
    lengths = call.allocate(values)
    text = of_group(
        call,
        "ob_rotate",
        {"given": matrix},
        {"work": work, "turned": turned, "failed": failed},
        batch,
        {"moved_of": "int"},
        {"SHARE_MOVED": _SHARE_MOVED},
    )
    text.size("ROWS", rows)
    text.size("COLUMNS", columns)
    text.words["SWEEPS"] = str(_SWEEPS)
    call.launch(text.fill(_ROTATE), _measure(call, work, turned, lengths))
    call.launch(_order(call, work, turned, lengths, rotated, values, right))
    for tensor in (work, turned, lengths):
        call.free(tensor)
    return [rotated.name, values.name, right.name, failed.name]


def _measure(call: TemplateCall, work: Tensor, turned: Tensor, lengths: Tensor) -> Kernel:
    batch, rows, columns = work.size
    read = {"work": work, "turned": turned}
    if call.arguments["symmetric"] is not None:
        read["symmetric"] = call.tensor("symmetric")
    text = of_items(call, "ob_measure_columns", read, {"lengths": lengths}, batch * columns)
    text.size("ROWS", rows)
    text.size("COLUMNS", columns)
    return text.fill(_MEASURE if call.arguments["symmetric"] is None else _EIGENVALUES)


def _order(call: TemplateCall, work: Tensor, turned: Tensor, lengths: Tensor, *results: Tensor) -> Kernel:
    batch, rows, columns = work.size
    read = {"work": work, "turned": turned, "lengths": lengths}
    written = dict(zip(("rotated", "values", "right"), results, strict=True))
    text = of_items(call, "ob_order_columns", read, written, batch * columns)
    text.size("ROWS", rows)
    text.size("COLUMNS", columns)
    is_symmetric = call.arguments["symmetric"] is not None
    text.words["BEFORE"] = "other < length" if is_symmetric else "other > length"
    text.words["ROTATED"] = "" if is_symmetric else _NORMALIZE
    return text.fill(_ORDER)


_SHARE_MOVED = """\
    moved_of[me] = moved;
    OB_BARRIER;
    for (int item = 0; item < $GROUP; ++item) moved |= moved_of[item];
    OB_BARRIER;
"""

# With an odd number of columns, one has no partner in a round. A pair with a NaN is left unchanged.
# The last sweep still rotates by angles too small to need another sweep.
_ROTATE = """\
  $BEGIN
  $WRITTEN own = work + matrix * $WORK_BATCH;
  $WRITTEN turns = turned + matrix * $TURNED_BATCH;
  for (ob_i64 at = me; at < $ROWS * $COLUMNS; at += $GROUP) {
    const ob_i64 row = at % $ROWS, column = at / $ROWS;
    own[row * $WORK_ROW + column * $WORK_COLUMN] =
        given[matrix * $GIVEN_BATCH + row * $GIVEN_ROW + column * $GIVEN_COLUMN];
  }
  for (ob_i64 at = me; at < $COLUMNS * $COLUMNS; at += $GROUP)
    turns[at % $COLUMNS * $TURNED_ROW + at / $COLUMNS * $TURNED_COLUMN] = at % $COLUMNS == at / $COLUMNS ? 1 : 0;
  $SYNC
  const ob_i64 players = $COLUMNS + $COLUMNS % 2, rounds = players - 1;
  const $REAL least = $EPSILON * ($ROWS > 16 ? $SQRT(($REAL)$ROWS) : ($REAL)4);
  int moved = 1;
  for (int sweep = 0; sweep < $SWEEPS && moved; ++sweep) {
    moved = 0;
    for (ob_i64 round = 0; round < rounds; ++round) {
      for (ob_i64 pair = me; pair < players / 2; pair += $GROUP) {
        const ob_i64 left_column = (round + pair) % rounds;
        const ob_i64 right_column = pair == 0 ? rounds : (round + rounds - pair) % rounds;
        if (left_column >= $COLUMNS || right_column >= $COLUMNS) continue;
        $WRITTEN left = own + left_column * $WORK_COLUMN;
        $WRITTEN right = own + right_column * $WORK_COLUMN;
        $REAL first = 0, second = 0, both = 0;
        for (ob_i64 row = 0; row < $ROWS; ++row) {
          const $REAL a = left[row * $WORK_ROW], b = right[row * $WORK_ROW];
          first += a * a;
          second += b * b;
          both += a * b;
        }
        // A column whose square is not exact is as good as 0: elements are at most 1.
        if (!(first > $TINY / $EPSILON) || !(second > $TINY / $EPSILON)) continue;
        const $REAL angle = $ABS(both) / ($SQRT(first) * $SQRT(second));
        if (!(angle > $EPSILON / 2)) continue;
        if (angle > least) moved = 1;
        const $REAL zeta = (second - first) / (2 * both);
        const $REAL size = $ABS(zeta);
        // Beyond 1 / epsilon, the root of 1 + zeta² is zeta.
        const $REAL root = size * $EPSILON > 1 ? size : $SQRT(1 + size * size);
        const $REAL tangent = (zeta < 0 ? -1 : 1) / (size + root);
        const $REAL cosine = 1 / $SQRT(1 + tangent * tangent), sine = cosine * tangent;
        // Sums with the tangent of half the angle round less than products with the cosine.
        const $REAL bend = sine / (1 + cosine);
        for (ob_i64 row = 0; row < $ROWS; ++row) {
          const $REAL a = left[row * $WORK_ROW], b = right[row * $WORK_ROW];
          left[row * $WORK_ROW] = a - sine * (b + bend * a);
          right[row * $WORK_ROW] = b + sine * (a - bend * b);
        }
        for (ob_i64 row = 0; row < $COLUMNS; ++row) {
          const ob_i64 at = row * $TURNED_ROW + left_column * $TURNED_COLUMN;
          const ob_i64 with = row * $TURNED_ROW + right_column * $TURNED_COLUMN;
          const $REAL a = turns[at], b = turns[with];
          turns[at] = a - sine * (b + bend * a);
          turns[with] = b + sine * (a - bend * b);
        }
      }
      $SYNC
    }
$SHARE_MOVED
  }
  if (me == 0) failed[matrix * $FAILED_BATCH] = moved;
"""

_MEASURE = """\
  $BEGIN
  const ob_i64 matrix = item / $COLUMNS, column = item % $COLUMNS;
  $READ own = work + matrix * $WORK_BATCH + column * $WORK_COLUMN;
  $REAL sum = 0;
  for (ob_i64 row = 0; row < $ROWS; ++row) sum += own[row * $WORK_ROW] * own[row * $WORK_ROW];
  lengths[matrix * $LENGTHS_BATCH + column * $LENGTHS_ROW] = $SQRT(sum);
"""

# An eigenvector v of length 1 has the eigenvalue vᵀ A v.
_EIGENVALUES = """\
  $BEGIN
  const ob_i64 matrix = item / $COLUMNS, column = item % $COLUMNS;
  $READ own = turned + matrix * $TURNED_BATCH + column * $TURNED_COLUMN;
  $READ left = symmetric + matrix * $SYMMETRIC_BATCH;
  $REAL sum = 0, square = 0;
  for (ob_i64 row = 0; row < $COLUMNS; ++row) {
    $REAL product = 0;
    for (ob_i64 at = 0; at < $COLUMNS; ++at)
      product += left[row * $SYMMETRIC_COLUMN + at * $SYMMETRIC_ROW] * own[at * $TURNED_ROW];
    sum += product * own[row * $TURNED_ROW];
    square += own[row * $TURNED_ROW] * own[row * $TURNED_ROW];
  }
  lengths[matrix * $LENGTHS_BATCH + column * $LENGTHS_ROW] = sum / square;
"""

_NORMALIZE = """\
  $READ own = work + matrix * $WORK_BATCH + column * $WORK_COLUMN;
  for (ob_i64 row = 0; row < $ROWS; ++row)
    rotated[matrix * $ROTATED_BATCH + row * $ROTATED_ROW + place * $ROTATED_COLUMN] =
        length > $TINY ? own[row * $WORK_ROW] / length : 0;
"""

# A column's position is the number of columns that sort before it. NaNs sort last.
_ORDER = """\
  $BEGIN
  const ob_i64 matrix = item / $COLUMNS, column = item % $COLUMNS;
  const $REAL length = lengths[matrix * $LENGTHS_BATCH + column * $LENGTHS_ROW];
  ob_i64 place = 0;
  for (ob_i64 at = 0; at < $COLUMNS; ++at) {
    const $REAL other = lengths[matrix * $LENGTHS_BATCH + at * $LENGTHS_ROW];
    const bool is_same = other == length || (other != other && length != length);
    place += $BEFORE || (length != length && other == other) || (is_same && at < column);
  }
  values[matrix * $VALUES_BATCH + place * $VALUES_ROW] = length;
$ROTATED
  for (ob_i64 row = 0; row < $COLUMNS; ++row)
    right[matrix * $RIGHT_BATCH + row * $RIGHT_ROW + place * $RIGHT_COLUMN] =
        turned[matrix * $TURNED_BATCH + row * $TURNED_ROW + column * $TURNED_COLUMN];
"""
