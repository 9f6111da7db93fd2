# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of products for GPUs: tiles in a group's memory, with several results per item in registers.

A group of 256 items computes a tile of 64 by 64 results. A side is 128 if there are enough tiles to keep a large device
busy, and nearly all of a tile is used. If a group has fewer items or less memory, tiles are smaller. An item computes 4
by 4 results, or two or four such blocks. Sixteen steps of both operands are loaded into local memory at a time, while
the next steps are loaded into registers. Neighbouring items load adjacent elements. If few tiles have long sums,
several groups share the steps of a tile, and a second launch adds their sums in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.dialects.group_limits import GroupLimits
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, simplified
from torch_outboard.kernels.templates.channels import holds
from torch_outboard.kernels.templates.product import Epilogue, Operand, Product, SumType, ceil_div, filled
from torch_outboard.kernels.templates.schedules.parts import (
    allocate_parts,
    epilogue_of_parts,
    range_of_split,
    sum_of_parts,
)

__all__ = ["multiply"]

# Items of a group down and across a tile, best first. An item computes 4 by 4 results.
_ITEMS = ((16, 16), (8, 16), (8, 8), (4, 8), (4, 4))
_LARGER = ((2, 2), (1, 2), (2, 1))  # multiples of the smallest tile, best first
_MAX_WASTE = 1.125  # results of a large tile relative to the smallest tiles
# Fewer tiles than `_ENOUGH_TILES` leave a device partly idle. Then at most `_MAX_SPLITS` groups
# share a tile's steps, and each fills the group's memory at least `_MIN_TURNS` times.
_ENOUGH_TILES, _MAX_SPLITS, _MIN_TURNS = 128, 64, 16


@dataclass(frozen=True)
class _Tile:
    """A tile of `high` by `wide` results for `down` by `across` items, with one or several blocks of 4 by 4 each."""

    down: int
    across: int
    high: int
    wide: int
    steps: int

    @property
    def group(self) -> int:
        return self.down * self.across

    @property
    def results(self) -> int:
        return self.high * self.wide

    def memory(self, sums: SumType) -> int:
        return self.steps * (_pitch(self.high) + _pitch(self.wide)) * sums.size


def multiply(call: TemplateCall, product: Product) -> None:
    """Write the launch of a product."""
    schedule = call.schedule("tiles")
    smallest = _smallest(call.limits, product.sums, schedule["steps"])
    tile = _tile_of(call.limits, product, smallest, schedule["many"])
    splits = _splits(product, tile) if tile == smallest else None
    if splits is None:
        call.launch(_kernel(call, product, product.epilogue, tile))
        return
    part = allocate_parts(call, product, splits)
    kernel = _kernel(call, product, epilogue_of_parts(part), tile, splits)
    call.launch(kernel, sum_of_parts(call, product, part, splits))
    call.free(part)


def _smallest(limits: GroupLimits, sums: SumType, steps: int) -> _Tile:
    """Return the smallest tile of the largest group that fits the device; if none fits, one that `launch` refuses."""
    tiles = [_Tile(down, across, 4 * down, 4 * across, steps) for down, across in _ITEMS]
    return next(
        (tile for tile in tiles if tile.group <= limits.items and tile.memory(sums) <= limits.memory), tiles[-1]
    )


def _tile_of(limits: GroupLimits, product: Product, smallest: _Tile, many: int) -> _Tile:
    """Return the tile of a product: a larger one if there are enough of them and it fits."""
    if product.sums.size > 4:
        return smallest
    most = _MAX_WASTE * smallest.results * _tiles(product, smallest, has_numbers=True)
    larger = [replace(smallest, high=down * smallest.high, wide=across * smallest.wide) for down, across in _LARGER]

    def is_good(tile: _Tile) -> bool:
        count = _tiles(product, tile, has_numbers=True)
        fits = tile.memory(product.sums) <= limits.memory
        return bool(fits and count >= many and count * tile.results <= most)

    return next((tile for tile in larger if is_good(tile)), smallest)


def _splits(product: Product, tile: _Tile) -> Any:
    """Return how many groups share a tile's steps if there are few tiles with long sums, else None."""
    least = _MIN_TURNS * tile.steps
    is_float = product.sums.dtype == torch.float32
    if (
        not is_float
        or not holds(sympy.Ge(product.depth, 4 * least))
        or holds(sympy.Ge(_tiles(product, tile), _ENOUGH_TILES))
    ):
        return None
    wanted = FloorDiv(2 * _ENOUGH_TILES, sympy.Max(1, _tiles(product, tile)))
    return simplified(sympy.Max(1, sympy.Min(_MAX_SPLITS, wanted, FloorDiv(product.depth, least))))


def _kernel(call: TemplateCall, product: Product, epilogue: Epilogue, tile: _Tile, splits: Any = None) -> Kernel:
    kernel = Kernel(f"{product.name}_of_tiles", product.before)
    sizes = product.sizes(kernel)
    for part in (product.left, product.right, epilogue):
        part.declare(kernel)
    steps = tile.steps
    left_loads, right_loads = (side * steps // tile.group for side in (tile.high, tile.wide))
    # Neighbouring items store adjacent results.
    across, down = ("/", "%") if epilogue.dense == "row" else ("%", "/")
    words = {
        **sizes,
        "KIND": product.sums.kind,
        "TILE_ROWS": str(tile.high),
        "TILE_COLUMNS": str(tile.wide),
        "HIGH": str(tile.high // tile.down),
        "WIDE": str(tile.wide // tile.across),
        "ROWS_APART": str(4 * tile.down),
        "COLUMNS_APART": str(4 * tile.across),
        "ACROSS": f"item {across} {tile.down if across == '/' else tile.across} * 4",
        "DOWN": f"item {down} {tile.down if down == '%' else tile.across} * 4",
        "LEFT_LOADS": str(left_loads),
        "RIGHT_LOADS": str(right_loads),
        "STEPS": str(steps),
        "FIND_LEFT": _find(product.left, "first_row", "$ROWS", tile, tile.high),
        "FIND_RIGHT": _find(product.right, "first_column", "$COLUMNS", tile, tile.wide),
        "FETCH_LEFT": _fetch(product.left, product.sums, "left_next", tile, tile.high),
        "FETCH_RIGHT": _fetch(product.right, product.sums, "right_next", tile, tile.wide),
        "PUT_LEFT": _store_tile(product.left, "left", tile, tile.high),
        "PUT_RIGHT": _store_tile(product.right, "right", tile, tile.wide),
        "READ_LEFT": _read(call.dialect, "l", "left_tile", "down", tile.high, tile.down, product.sums),
        "READ_RIGHT": _read(call.dialect, "r", "right_tile", "across", tile.wide, tile.across, product.sums),
        "UNROLL": call.dialect.unroll,
        "END": epilogue.store,
        "RANGE": "const ob_i64 begin = 0, until = $DEPTH;" if splits is None else _RANGE,
        "OF_SPLIT": range_of_split("($DEPTH + $STEPS - 1) / $STEPS"),
        "SPLITS": "1" if splits is None else kernel.number("splits", splits),
        # An explicit fma is one instruction on devices with groups of items, and dialects fuse
        # nothing on their own.
        "SUM": "OB_LIB(fma)(l[i], r[j], sums[i * $WIDE + j])"
        if product.sums.dtype.is_floating_point
        else "l[i] * r[j] + sums[i * $WIDE + j]",
    }
    kernel.arrays = [
        LocalArray(product.sums.kind, f"{which}_tile", f"{steps} * {_pitch(side)}", is_aligned=True)
        for which, side in zip(("left", "right"), (tile.high, tile.wide), strict=True)
    ]
    kernel.text, kernel.group = filled(_TEXT, words), tile.group
    kernel.groups = _tiles(product, tile) * (1 if splits is None else splits)
    return kernel


def _pitch(side: int) -> int:
    """Return the distance between a tile's steps in local memory."""
    return side + 4


def _tiles(product: Product, tile: _Tile, has_numbers: bool = False) -> Any:
    """Return the number of tiles, as an expression or for the sizes of the traced call."""
    count = product.batch * ceil_div(product.rows, tile.high) * ceil_div(product.columns, tile.wide)
    return V.graph.sizevars.optimization_hint(simplified(count), fallback=0) if has_numbers else count


def _place(operand: Operand, group: int, side: int) -> str:
    """Return the line and the step of the tile that an item loads."""
    if operand.is_dense_along_steps:
        return f"const int at_line = (item + load * {group}) / $STEPS, at_step = item % $STEPS;"
    return f"const int at_line = (item + load * {group}) % {side}, at_step = (item + load * {group}) / {side};"


def _find(operand: Operand, first: str, size: str, tile: _Tile, side: int) -> str:
    """Return the loop that computes the numbers of an item's lines."""
    loads = side * tile.steps // tile.group
    return f"""\
  {operand.arrays(loads)}
  for (int load = 0; load < {loads}; ++load) {{
    {_place(operand, tile.group, side)}
    // What is beyond the last line is computed and not stored.
    const ob_i64 line = {first} + at_line < {size} ? {first} + at_line : {size} - 1;
    {operand.computed()}
    {operand.lines("load")}
  }}
"""


def _fetch(operand: Operand, sums: SumType, into: str, tile: _Tile, side: int) -> str:
    """Return the loop that loads an item's elements, for the steps from `from_step` on."""
    loads = side * tile.steps // tile.group
    return f"""\
    $UNROLL
    for (int load = 0; load < {loads}; ++load) {{
      {_place(operand, tile.group, side)}
      const ob_i64 step = from_step + at_step;
      {operand.reload("load")}
      $KIND element = 0;
      if (step < until) {{
        {operand.of_step}
        element = {operand.element(sums)};
      }}
      {into}[load] = element;
    }}
"""


def _store_tile(operand: Operand, which: str, tile: _Tile, side: int) -> str:
    loads = side * tile.steps // tile.group
    return f"""\
    $UNROLL
    for (int load = 0; load < {loads}; ++load) {{
      {_place(operand, tile.group, side)}
      {which}_tile[at_step * {_pitch(side)} + at_line] = {which}_next[load];
    }}
"""


def _read(dialect: Dialect, into: str, tile: str, first: str, side: int, items: int, sums: SumType) -> str:
    """Return the statements that read four lines of a step, at once if the language has vectors of the type."""
    index = f"at * {_pitch(side)} + i * {items} + {first}"
    if sums.suffix not in ("f32", "u32"):
        return f"for (int k = 0; k < 4; ++k) {into}[i + k] = {tile}[{index} + k];"
    parts = " ".join(f"{into}[i + {k}] = {into}_four.{part};" for k, part in enumerate("xyzw"))
    return f"const {dialect.four(sums.kind)} {into}_four = {dialect.load_four(sums.kind, tile, index)}; {parts}"


_RANGE = """\
const ob_i64 split = number / tiles_down / tiles_across / $BATCH;
  $OF_SPLIT
  const ob_i64 begin = from_count * $STEPS, end = to_count * $STEPS;
  const ob_i64 until = end < $DEPTH ? end : $DEPTH;"""

# An item has four adjacent lines, which are read at once, and four in each further block of the
# tile.
_TEXT = """\
  const int item = OB_ITEM_OF_GROUP;
  const ob_i64 number = OB_GROUP_NUMBER;
  const ob_i64 tiles_down = ($ROWS + $TILE_ROWS - 1) / $TILE_ROWS;
  const ob_i64 tiles_across = ($COLUMNS + $TILE_COLUMNS - 1) / $TILE_COLUMNS;
  const ob_i64 first_row = number % tiles_down * $TILE_ROWS;
  const ob_i64 first_column = number / tiles_down % tiles_across * $TILE_COLUMNS;
  const ob_i64 batch = number / tiles_down / tiles_across % $BATCH;
  $RANGE
  const int across = $ACROSS, down = $DOWN;
  $KIND sums[$HIGH * $WIDE];
  $UNROLL
  for (int i = 0; i < $HIGH * $WIDE; ++i) sums[i] = 0;
$FIND_LEFT
$FIND_RIGHT
  $KIND left_next[$LEFT_LOADS], right_next[$RIGHT_LOADS];
  {
    const ob_i64 from_step = begin;
$FETCH_LEFT
$FETCH_RIGHT
  }
  for (ob_i64 first_step = begin; first_step < until; first_step += $STEPS) {
$PUT_LEFT
$PUT_RIGHT
    OB_BARRIER;
    const ob_i64 from_step = first_step + $STEPS;
    if (from_step < until) {
$FETCH_LEFT
$FETCH_RIGHT
    }
    $UNROLL
    for (int at = 0; at < $STEPS; ++at) {
      $KIND l[$HIGH], r[$WIDE];
      $UNROLL
      for (int i = 0; i < $HIGH; i += 4) {
        $READ_LEFT
      }
      $UNROLL
      for (int i = 0; i < $WIDE; i += 4) {
        $READ_RIGHT
      }
      $UNROLL
      for (int i = 0; i < $HIGH; ++i) {
        $UNROLL
        for (int j = 0; j < $WIDE; ++j) sums[i * $WIDE + j] = $SUM;
      }
    }
    OB_BARRIER;
  }
  $UNROLL
  for (int i = 0; i < $HIGH; ++i) {
    $UNROLL
    for (int j = 0; j < $WIDE; ++j) {
      const ob_i64 row = first_row + i / 4 * $ROWS_APART + down + i % 4;
      const ob_i64 column = first_column + j / 4 * $COLUMNS_APART + across + j % 4;
      if (row < $ROWS && column < $COLUMNS) {
        const $KIND value = sums[i * $WIDE + j];
        $END
      }
    }
  }
"""
