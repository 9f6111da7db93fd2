# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of products for devices with matrix units: tiles in the group's memory, multiplied by the unit.

A group has a tile of 64 by 64 results, or 128 by 128 if there are many. The lanes of a unit have a part of the tile,
whose sums are in their registers. Both operands' elements of some steps lie in the group's memory twice: one half is
multiplied while the next steps are brought to the other half.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.virtualized import V

from torch_outboard.codegen.dialects.units import unit_of
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, simplified
from torch_outboard.kernels.templates.product import Product, ceil_div, filled
from torch_outboard.kernels.templates.schedules.matrix_sides import Side, Tiling

__all__ = ["multiply"]

_SMALL, _LARGE = 64, 128


def multiply(call: TemplateCall, product: Product) -> None:
    """Write the launch of a product."""
    schedule = call.schedule("matrix")
    unit = unit_of(call.dialect.units, call.dtype)
    assert unit is not None  # else the way does not serve the call
    has_many = _tiles(product, _LARGE, has_numbers=True) >= schedule["many"]
    tiling = Tiling.of(unit, _LARGE if has_many else _SMALL, schedule["steps"])
    kernel = Kernel(f"{product.name}_of_units", unit.header + product.before)
    sizes = product.sizes(kernel)
    product.left.declare(kernel)
    product.right.declare(kernel)
    declare, end = product.end
    declare(kernel)
    tile = (tiling.tile, tiling.steps)
    sides = (
        Side("left", product.left, ("first_row", "$ROWS"), tiling, call.dialect, *tile, is_left=True),
        Side("right", product.right, ("first_column", "$COLUMNS"), tiling, call.dialect, *tile, is_left=False),
    )
    words = {
        **sizes,
        **tiling.words(),
        "UNROLL": call.dialect.unroll,
        "FIND": "".join(side.find() for side in sides),
        "BEGIN": "".join(side.begin() for side in sides),
        "FINISH": "".join(side.finish() for side in sides),
        "WAIT": unit.copies.wait if unit.copies else "",
        "LOAD_LEFT": sides[0].load(f"part_row + block * {unit.m}"),
        "LOAD_RIGHT": sides[1].load(f"part_column + block * {unit.n}"),
        "MULTIPLY": unit.multiply,
        "SUMS": "sums + (i * $ACROSS + j) * $RESULTS",
        "LEFT": "left_part + i * $LEFT_COUNT",
        "RIGHT": "right_part + j * $RIGHT_COUNT",
        "END": end,
    }
    kernel.arrays = [side.array() for side in sides]
    kernel.text, kernel.group = filled(_TEXT, words), tiling.group
    kernel.groups = _tiles(product, tiling.tile)
    call.launch(kernel)


def _tiles(product: Product, tile: int, has_numbers: bool = False) -> Any:
    """Return the number of tiles, as an expression or for the sizes of the call that the plan is built for."""
    count = product.batch * ceil_div(product.rows, tile) * ceil_div(product.columns, tile)
    return V.graph.sizevars.optimization_hint(simplified(count), fallback=0) if has_numbers else count


_TEXT = """\
  const int item = OB_ITEM_OF_GROUP;
  const int lane = item % $LANES;
  const int part_row = item / $LANES % $PARTS_DOWN * $PART_ROWS;
  const int part_column = item / $LANES / $PARTS_DOWN * $PART_COLUMNS;
  const ob_i64 number = OB_GROUP_NUMBER;
  const ob_i64 tiles_down = ($ROWS + $TILE - 1) / $TILE;
  const ob_i64 tiles_across = ($COLUMNS + $TILE - 1) / $TILE;
  const ob_i64 first_row = number % tiles_down * $TILE;
  const ob_i64 first_column = number / tiles_down % tiles_across * $TILE;
  const ob_i64 batch = number / tiles_down / tiles_across;
  float sums[$DOWN * $ACROSS * $RESULTS];
  $UNROLL
  for (int i = 0; i < $DOWN * $ACROSS * $RESULTS; ++i) sums[i] = 0;
$FIND
  int turn = 0;
  {
    const ob_i64 from_step = 0;
    const int other = turn;
$BEGIN
$FINISH
  }
  for (ob_i64 first_step = 0; first_step < $DEPTH; first_step += $STEPS) {
    $WAIT
    OB_BARRIER;
    const ob_i64 from_step = first_step + $STEPS;
    const int other = 1 - turn;
    if (from_step < $DEPTH) {
$BEGIN
    }
    $UNROLL
    for (int at = 0; at < $STEPS; at += $UNIT_STEPS) {
      $LEFT_KIND left_part[$DOWN * $LEFT_COUNT];
      $RIGHT_KIND right_part[$ACROSS * $RIGHT_COUNT];
      $UNROLL
      for (int block = 0; block < $DOWN; ++block) {
        $LOAD_LEFT
      }
      $UNROLL
      for (int block = 0; block < $ACROSS; ++block) {
        $LOAD_RIGHT
      }
      $UNROLL
      for (int i = 0; i < $DOWN; ++i) {
        $UNROLL
        for (int j = 0; j < $ACROSS; ++j) {
          $MULTIPLY
        }
      }
    }
    if (from_step < $DEPTH) {
$FINISH
    }
    turn = other;
  }
  $UNROLL
  for (int i = 0; i < $DOWN; ++i) {
    $UNROLL
    for (int j = 0; j < $ACROSS; ++j) {
      $UNROLL
      for (int index = 0; index < $RESULTS; ++index) {
        const ob_i64 row = first_row + part_row + i * $UNIT_ROWS + ($RESULT_ROW);
        const ob_i64 column = first_column + part_column + j * $UNIT_COLUMNS + ($RESULT_COLUMN);
        if (row < $ROWS && column < $COLUMNS) {
          const float value = sums[(i * $ACROSS + j) * $RESULTS + index];
          $END
        }
      }
    }
  }
"""
