# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of products for devices with matrix units: tiles in the group's memory, multiplied by the unit.

A group computes a tile of 64 by 64 results, or up to 128 by 128 if there are many. The lanes of a unit compute a part
of the tile, and keep its sums in registers. The group's memory has slots, each for some steps of both operands: one is
multiplied while the others are filled. There are three if elements are copied asynchronously, and two if they pass
through registers. If a multiprocessor has enough memory, slots hold twice as many steps. If few tiles have long sums,
several groups share the steps of a tile, and a second launch adds their sums, always in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.dialects.units import MatrixUnit, unit_of
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, simplified
from torch_outboard.kernels.templates.channels import NARROW, holds
from torch_outboard.kernels.templates.product import Epilogue, Operand, Product, ceil_div, filled
from torch_outboard.kernels.templates.schedules.matrix_epilogues import stores
from torch_outboard.kernels.templates.schedules.matrix_fragments import distribute_sums, multiplied, zeros
from torch_outboard.kernels.templates.schedules.matrix_sides import Side, Tiling, lay_out
from torch_outboard.kernels.templates.schedules.parts import (
    allocate_parts,
    epilogue_of_parts,
    range_of_split,
    sum_of_parts,
)

__all__ = ["multiply"]

_SMALL, _LARGE = 64, 128
# Rows of tiles that adjacent groups process together, so that their operands stay in the cache.
_TILE_ROWS_OF_BAND = 16
# The maximum number of groups that share a tile's steps, and the minimum number of times that each
# fills its slots.
_MAX_SPLITS, _MIN_TURNS = 64, 8
# Turns that take longer than storing and adding the parts of a sum.
_MIN_TURNS_WORTH_SPLITTING = 64


@dataclass(frozen=True)
class _Choice:
    """How a product is distributed over groups; guards of the plan preserve the choice.

    A large tile has 128 rows if the product has more than 64, and likewise for columns. The lanes of a large tile load
    less per multiplication, but rows beyond the end of the product are wasted.

    | such tiles | tiles of 64 by 64 | sums | chosen |
    |---|---|---|---|
    | enough for the device | | | such tiles |
    | some | | very long | such tiles, whose steps are split |
    | few | enough for the device | | tiles of 64 by 64 |
    | few | few | short | tiles of 64 by 64 |
    | some | few | long | such tiles, whose steps are split |
    | very few | few | long | tiles of 64 by 64, whose steps are split |
    """

    tile: tuple[int, int]
    is_split: bool

    @staticmethod
    def of(product: Product, many: int, steps: int, largest: int) -> _Choice:
        sizes = (product.rows, product.columns)
        rows, columns = (largest if holds(sympy.Gt(size, _SMALL)) else _SMALL for size in sizes)
        large, small = (rows, columns), (_SMALL, _SMALL)
        if holds(sympy.Ge(_tiles(product, large), many)):
            return _Choice(large, False)
        has_some = holds(sympy.Ge(_tiles(product, large), many // 8))
        if has_some and holds(sympy.Ge(product.depth, _MIN_TURNS_WORTH_SPLITTING * steps)):
            return _Choice(large, True)
        is_short = not holds(sympy.Ge(product.depth, 2 * _MIN_TURNS * steps))
        if is_short or (large != small and holds(sympy.Ge(_tiles(product, small), many))):
            return _Choice(small, False)
        return _Choice(large if has_some else small, True)


def multiply(call: TemplateCall, product: Product) -> None:
    """Write the launches of a product."""
    schedule = call.schedule("matrix")
    unit = unit_of(call.dialect.units, call.dtype)
    assert unit is not None  # otherwise this way would not serve the call
    names = ("row", "column")
    if product.epilogue.dense == "row":  # so that a lane's adjacent results are adjacent in memory
        product, names = _turned(product), ("column", "row")
    small, large = (Tiling.of(unit, (size, size), schedule["steps"]) for size in (_SMALL, _LARGE))
    largest = _LARGE if _bytes(large) <= max(call.limits.memory, call.dynamic_memory) else _SMALL
    choice = _Choice.of(product, schedule["many"], small.steps, largest)
    tiling = Tiling.of(unit, choice.tile, schedule["steps"])
    twice = Tiling.of(unit, choice.tile, 2 * schedule["steps"])
    # Operands that are not copied asynchronously pass through registers, which have no room for
    # larger tiles.
    are_copied = unit.copies is not None and product.left.has_chunks and product.right.has_chunks
    if are_copied and _bytes(twice) <= call.dynamic_memory:
        tiling = twice
    if not choice.is_split:
        call.launch(_kernel(call, product, product.epilogue, tiling, names))
        return
    splits = _splits(product, tiling, schedule["many"])
    part = allocate_parts(call, product, splits)
    kernel = _kernel(call, product, epilogue_of_parts(part, names), tiling, names, splits)
    call.launch(kernel, sum_of_parts(call, product, part, splits, names))
    call.free(part)


def _slots(unit: MatrixUnit) -> int:
    return 3 if unit.copies else 2


def _bytes(tiling: Tiling) -> int:
    """Return the bytes of a group's memory that a tiling needs, at most."""
    unit, chunks = tiling.unit, tiling.steps // tiling.chunk
    lines = _slots(unit) * (tiling.height + tiling.width)
    if unit.sums is None:
        return lines * chunks * 16
    # The chunks of joint matrices are not permuted; instead, rows have an odd number of chunks.
    return lines * (chunks | 1) * 16 + tiling.numbers * 4


def _turned(product: Product) -> Product:
    return replace(product, rows=product.columns, columns=product.rows, left=product.right, right=product.left)


def _kernel(
    call: TemplateCall, product: Product, epilogue: Epilogue, tiling: Tiling, names: tuple[str, str], splits: Any = None
) -> Kernel:
    unit, count = tiling.unit, "$DOWN * $ACROSS"
    slots = _slots(unit)
    sums = "held" if unit.sums else "sums"
    kernel = Kernel(f"{product.name}_of_units", unit.header + product.before)
    sizes = product.sizes(kernel)
    for part in (product.left, product.right, epilogue):
        part.declare(kernel)
    groups = _tiles(product, (tiling.height, tiling.width)) * (1 if splits is None else splits)
    is_narrow = all(holds(sympy.Le(size, NARROW)) for size in (product.rows, product.columns, product.depth))

    def side(name: str, operand: Operand, lines: tuple[str, str], is_left: bool) -> Side:
        tile = (tiling.height if is_left else tiling.width, tiling.steps)
        shared = call.dialect, *tile, is_left, slots
        made = Side(name, operand, lines, tiling, *shared, until="until", shifts=True)
        return made.counting() if is_narrow else made

    left = side("left", product.left, ("first_row", "$ROWS"), True)
    right = side("right", product.right, ("first_column", "$COLUMNS"), False)
    distribute = f"  float sums[{count} * $RESULTS];\n{distribute_sums(unit, sums, 'sums', count)}" if unit.sums else ""
    words = {
        **sizes,
        **tiling.words(),
        "INDEX": "ob_i32" if is_narrow else "ob_i64",
        "COUNT": "ob_u32" if is_narrow and holds(sympy.Le(groups, NARROW)) else "ob_i64",
        "UNROLL": call.dialect.unroll,
        "BAND": str(_TILE_ROWS_OF_BAND),
        "SLOTS": str(slots),
        "ZEROS": zeros(unit, sums, count),
        "DISTRIBUTE": distribute,
        "FIND": "".join(side.declared() + side.find_first() + side.find() for side in (left, right)),
        "BEGIN": left.begin() + right.begin(),
        "FINISH": left.finish() + right.finish(),
        "ADVANCE": left.advance() + right.advance(),
        "COMMIT": unit.copies.commit if unit.copies else "",
        "WAIT": filled(unit.copies.wait, {"LATER": str(slots - 2)}) if unit.copies else "",
        "LOAD_LEFT": left.load("part_row", "$DOWN", "left_part"),
        "LOAD_RIGHT": right.load("part_column", "$ACROSS", "right_part"),
        "MULTIPLY": multiplied(unit, sums, tiling.rows // unit.m, tiling.columns // unit.n),
        "RANGE": "const $INDEX begin = 0, until = $ALL_STEPS;",
        "ALL_STEPS": product.steps_of_batch or "$DEPTH",
        "ROW": names[0],
        "COLUMN": names[1],
        "LOOPS": _LOOP,
    }
    if left.copies and right.copies and tiling.steps // unit.k % 2 == 0:
        words |= _wide_words(unit, left, right)
    kernel.groups = groups
    if splits is not None:
        turns = range_of_split("($ALL_STEPS + $STEPS - 1) / $STEPS", "ob_u32" if is_narrow else "ob_i64")
        words |= {"SPLITS": kernel.number("splits", splits), "RANGE": _RANGE, "OF_SPLIT": turns}
    words |= stores(epilogue, unit, names, tiling.columns // unit.n)
    lay_out(kernel, left, right)
    if unit.sums:
        kernel.arrays.append(LocalArray("float", "dealt", str(tiling.numbers)))
    kernel.text, kernel.group = filled(_TEXT, words), tiling.group
    return kernel


def _wide_words(unit: MatrixUnit, left: Side, right: Side) -> dict[str, str]:
    """Return the placeholder texts of the loop for operands that are loaded 16 bytes at a time."""
    assert unit.copies is not None
    find_left, left_lane = left.place_of_lane("part_row")
    find_right, right_lane = right.place_of_lane("part_column")
    return {
        "LOOPS": _WIDE_LOOP + _LOOP,
        "FIND_LANE": find_left + find_right,
        "LOAD_NEXT_LEFT": left.load("part_row", "$DOWN", "next_left", "next", left_lane),
        "LOAD_NEXT_RIGHT": right.load("part_column", "$ACROSS", "next_right", "next", right_lane),
        "BEGIN_LEFT": left.begin_wide(),
        "BEGIN_RIGHT": right.begin_wide(),
        "RIGHT_AT": str(unit.k if left.steps > 2 * unit.k else 0),
        "WAIT_ALL": filled(unit.copies.wait, {"LATER": "0"}),
    }


def _splits(product: Product, tiling: Tiling, many: int) -> Any:
    """Return how many groups share a tile: enough to keep the device busy, each with enough turns."""
    wanted = FloorDiv(2 * many, sympy.Max(sympy.Integer(1), _tiles(product, (tiling.height, tiling.width))))
    turns = FloorDiv(product.depth, _MIN_TURNS * tiling.steps)
    return simplified(sympy.Max(sympy.Integer(1), sympy.Min(sympy.Integer(_MAX_SPLITS), wanted, turns)))


def _tiles(product: Product, tile: tuple[int, int]) -> Any:
    return product.batch * ceil_div(product.rows, tile[0]) * ceil_div(product.columns, tile[1])


_RANGE = """\
const ob_i64 split = group_number / (tiles * ($COUNT)$BATCH);
  $OF_SPLIT
  const $INDEX begin = ($INDEX)(from_count * $STEPS), end = ($INDEX)(to_count * $STEPS);
  const $INDEX until = end < $ALL_STEPS ? end : $ALL_STEPS;"""

_TEXT = """\
  const ob_u32 item = OB_ITEM_OF_GROUP;
  const ob_u32 lane = item % $LANES;
  const ob_u32 part_row = item / $LANES % $PARTS_DOWN * $PART_ROWS;
  const ob_u32 part_column = item / $LANES / $PARTS_DOWN * $PART_COLUMNS;
  const $INDEX tiles_down = ($ROWS + $HEIGHT - 1) / $HEIGHT, tiles_across = ($COLUMNS + $WIDTH - 1) / $WIDTH;
  const $COUNT group_number = ($COUNT)OB_GROUP_NUMBER;
  const $COUNT tiles = ($COUNT)tiles_down * ($COUNT)tiles_across;
  const ob_i64 batch = group_number / tiles % ($COUNT)$BATCH;
$OF_BATCH  const $INDEX number = ($INDEX)(group_number % tiles);
  const $INDEX first_band = number / ($BAND * tiles_across) * $BAND;
  const $INDEX band = tiles_down - first_band < $BAND ? tiles_down - first_band : $BAND;
  const $INDEX of_band = number - first_band * tiles_across;
  const $INDEX first_row = (first_band + of_band % band) * $HEIGHT, first_column = of_band / band * $WIDTH;
  $RANGE
$ZEROS
  $INDEX from_step = begin;
$FIND
  int other = 0;
  for (; other < $SLOTS - 1; ++other) {
    if (from_step < until) {
$BEGIN
$FINISH
    }
    $COMMIT
    from_step += $STEPS;
$ADVANCE  }
  int turn = 0;
$LOOPS
$DISTRIBUTE
$STORE"""

# The next step's fragments are loaded while this step's are multiplied, and the last step of a turn
# waits for the next turn's elements. There are no branches around the copies, so that a compiler
# can spread them among the multiplications.
_WIDE_LOOP = """\
  if (left_is_wide && right_is_wide) {
$FIND_LANE
  $LEFT_KIND left_parts[2][$DOWN * $LEFT_COUNT];
  $RIGHT_KIND right_parts[2][$ACROSS * $RIGHT_COUNT];
  $WAIT
  OB_BARRIER;
  {
    $LEFT_KIND* next_left = left_parts[0];
    $RIGHT_KIND* next_right = right_parts[0];
    const int next = 0;
$LOAD_NEXT_LEFT
$LOAD_NEXT_RIGHT
  }
  for ($INDEX first_step = begin; first_step < until; first_step += $STEPS) {
    $UNROLL
    for (int at = 0; at < $STEPS; at += $UNIT_STEPS) {
      $LEFT_KIND* left_part = left_parts[at / $UNIT_STEPS % 2];
      $RIGHT_KIND* right_part = right_parts[at / $UNIT_STEPS % 2];
      $LEFT_KIND* next_left = left_parts[(at / $UNIT_STEPS + 1) % 2];
      $RIGHT_KIND* next_right = right_parts[(at / $UNIT_STEPS + 1) % 2];
      const int next = (at + $UNIT_STEPS) % $STEPS;
      if (next == 0) {
        $WAIT
        OB_BARRIER;
        turn = turn == $SLOTS - 1 ? 0 : turn + 1;
      }
$LOAD_NEXT_LEFT
$LOAD_NEXT_RIGHT
      if (at == 0) {
$BEGIN_LEFT
      }
      if (at == $RIGHT_AT) {
$BEGIN_RIGHT
        $COMMIT
      }
$MULTIPLY
    }
    from_step += $STEPS;
$ADVANCE    other = other == $SLOTS - 1 ? 0 : other + 1;
  }
  $WAIT_ALL
  } else
"""

_LOOP = """\
  for ($INDEX first_step = begin; first_step < until; first_step += $STEPS) {
    $WAIT
    OB_BARRIER;
    if (from_step < until) {
$BEGIN
    }
    $COMMIT
    $UNROLL
    for (int at = 0; at < $STEPS; at += $UNIT_STEPS) {
      $LEFT_KIND left_part[$DOWN * $LEFT_COUNT];
      $RIGHT_KIND right_part[$ACROSS * $RIGHT_COUNT];
$LOAD_LEFT
$LOAD_RIGHT
$MULTIPLY
    }
    if (from_step < until) {
$FINISH
    }
    from_step += $STEPS;
$ADVANCE    turn = turn == $SLOTS - 1 ? 0 : turn + 1;
    other = other == $SLOTS - 1 ? 0 : other + 1;
  }
"""
