# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of products for GPUs: tiles in the memory of a group of items, several results of an item in registers.

A group of 256 items has a tile of 64 by 64 results. A side has 128 if there are enough tiles to keep a large device
busy, and nearly all of a tile is used. An item has 4 by 4 results, or two or four such blocks. Sixteen steps of both
operands are loaded to local memory at a time, while the next ones are loaded into registers. Neighbouring items load
adjacent elements in memory. If few tiles have long sums, several groups share the steps of a tile, and a second launch
adds their sums in a fixed order.
"""

from __future__ import annotations

import math
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, simplified
from torch_outboard.kernels.templates.channels import holds
from torch_outboard.kernels.templates.product import End, Operand, Product, SumType, ceil_div, filled
from torch_outboard.kernels.templates.schedules.parts import allocate_parts, end_of_parts, sum_of_parts

__all__ = ["multiply"]

_GROUP = 256
_SMALL, _LARGE = 64, 128
_SMALLEST = (_SMALL, _SMALL)
_LARGER = ((_LARGE, _LARGE), (_SMALL, _LARGE), (_LARGE, _SMALL))  # the best tiles first
_MOST_WASTE = 1.125  # of a tile's results beside those of the smallest tiles
# Tiles that are few for a device. Groups then share the steps of a tile: so many
# at most, and each fills the group's memory so often at least.
_FEW, _MOST_SPLITS, _LEAST_TURNS = 128, 64, 16


def multiply(call: TemplateCall, product: Product) -> None:
    """Write the launch of a product."""
    schedule = call.schedule("tiles")
    steps = schedule["steps"]
    tile = _sides_of(product, schedule["many"])
    splits = _splits(product, steps) if tile == _SMALLEST else None
    if splits is None:
        call.launch(_kernel(call, product, product.end, tile, steps))
        return
    part = allocate_parts(call, product, splits)
    kernel = _kernel(call, product, end_of_parts(part), tile, steps, splits)
    call.launch(kernel, sum_of_parts(call, product, part, splits))
    call.free(part)


def _sides_of(product: Product, many: int) -> tuple[int, int]:
    """Return the rows and columns of a tile."""
    if product.sums.size > 4:
        return _SMALLEST
    most = _MOST_WASTE * math.prod(_SMALLEST) * _tiles(product, _SMALLEST, has_numbers=True)

    def is_good(tile: tuple[int, int]) -> bool:
        count = _tiles(product, tile, has_numbers=True)
        return bool(count >= many and count * math.prod(tile) <= most)

    return next((tile for tile in _LARGER if is_good(tile)), _SMALLEST)


def _splits(product: Product, steps: int) -> Any:
    """Return how many groups share the steps of a tile if few tiles have long sums, else None."""
    least = _LEAST_TURNS * steps
    is_float = product.sums.dtype == torch.float32
    if (
        not is_float
        or not holds(sympy.Ge(product.depth, 4 * least))
        or holds(sympy.Ge(_tiles(product, _SMALLEST), _FEW))
    ):
        return None
    wanted = FloorDiv(2 * _FEW, sympy.Max(1, _tiles(product, _SMALLEST)))
    return simplified(sympy.Max(1, sympy.Min(_MOST_SPLITS, wanted, FloorDiv(product.depth, least))))


def _kernel(
    call: TemplateCall, product: Product, end: End, tile: tuple[int, int], steps: int, splits: Any = None
) -> Kernel:
    kernel = Kernel(f"{product.name}_of_tiles", product.before)
    sizes = product.sizes(kernel)
    for one in (product.left, product.right, end):
        one.declare(kernel)
    high, wide = tile
    loads = [side * steps // _GROUP for side in tile]
    # Neighbouring items store adjacent results.
    across, down = ("/", "%") if end.dense == "row" else ("%", "/")
    words = {
        **sizes,
        "KIND": product.sums.kind,
        "TILE_ROWS": str(high),
        "TILE_COLUMNS": str(wide),
        "HIGH": str(high // 16),
        "WIDE": str(wide // 16),
        "ACROSS": f"item {across} 16 * 4",
        "DOWN": f"item {down} 16 * 4",
        "LEFT_LOADS": str(loads[0]),
        "RIGHT_LOADS": str(loads[1]),
        "STEPS": str(steps),
        "FIND_LEFT": _find(product.left, "first_row", "$ROWS", high, loads[0]),
        "FIND_RIGHT": _find(product.right, "first_column", "$COLUMNS", wide, loads[1]),
        "FETCH_LEFT": _fetch(product.left, product.sums, "left_next", high, loads[0]),
        "FETCH_RIGHT": _fetch(product.right, product.sums, "right_next", wide, loads[1]),
        "PUT_LEFT": _put(product.left, "left", high, loads[0]),
        "PUT_RIGHT": _put(product.right, "right", wide, loads[1]),
        "READ_LEFT": _read(call.dialect, "l", "left_tile", "down", high, product.sums),
        "READ_RIGHT": _read(call.dialect, "r", "right_tile", "across", wide, product.sums),
        "UNROLL": call.dialect.unroll,
        "END": end.store,
        "RANGE": "const ob_i64 begin = 0, until = $DEPTH;" if splits is None else _RANGE,
        "SPLITS": "1" if splits is None else kernel.number("splits", splits),
        # An explicit fma is one instruction on devices with groups of items, and
        # dialects fuse nothing by themselves.
        "SUM": "OB_LIB(fma)(l[i], r[j], sums[i * $WIDE + j])"
        if product.sums.dtype.is_floating_point
        else "l[i] * r[j] + sums[i * $WIDE + j]",
    }
    kernel.arrays = [
        LocalArray(product.sums.kind, f"{which}_tile", f"{steps} * {_pitch(side)}", is_aligned=True)
        for which, side in zip(("left", "right"), tile, strict=True)
    ]
    kernel.text, kernel.group = filled(_TEXT, words), _GROUP
    kernel.groups = _tiles(product, tile) * (1 if splits is None else splits)
    return kernel


def _pitch(side: int) -> int:
    """Return the distance of a tile's steps in local memory."""
    return side + 4


def _tiles(product: Product, tile: tuple[int, int], has_numbers: bool = False) -> Any:
    """Return the number of tiles, as an expression or for the sizes of the call that the plan is built for."""
    count = product.batch * ceil_div(product.rows, tile[0]) * ceil_div(product.columns, tile[1])
    return V.graph.sizevars.optimization_hint(simplified(count), fallback=0) if has_numbers else count


def _place(operand: Operand, side: int) -> str:
    """Return the line and the step of the tile that an item loads."""
    if operand.is_dense_along_steps:
        return f"const int at_line = (item + load * {_GROUP}) / $STEPS, at_step = item % $STEPS;"
    return f"const int at_line = (item + load * {_GROUP}) % {side}, at_step = (item + load * {_GROUP}) / {side};"


def _find(operand: Operand, first: str, size: str, side: int, loads: int) -> str:
    """Return the loop that computes the numbers of the lines that an item loads."""
    return f"""\
  {operand.arrays(loads)}
  for (int load = 0; load < {loads}; ++load) {{
    {_place(operand, side)}
    // What is beyond the last line is computed and not stored.
    const ob_i64 line = {first} + at_line < {size} ? {first} + at_line : {size} - 1;
    {operand.computed()}
    {operand.lines("load")}
  }}
"""


def _fetch(operand: Operand, sums: SumType, into: str, side: int, loads: int) -> str:
    """Return the loop that loads an item's elements of the steps from `from_step` on."""
    return f"""\
    $UNROLL
    for (int load = 0; load < {loads}; ++load) {{
      {_place(operand, side)}
      const ob_i64 step = from_step + at_step;
      {operand.again("load")}
      $KIND element = 0;
      if (step < until) {{
        {operand.of_step}
        element = {operand.element(sums)};
      }}
      {into}[load] = element;
    }}
"""


def _put(operand: Operand, which: str, side: int, loads: int) -> str:
    return f"""\
    $UNROLL
    for (int load = 0; load < {loads}; ++load) {{
      {_place(operand, side)}
      {which}_tile[at_step * {_pitch(side)} + at_line] = {which}_next[load];
    }}
"""


def _read(dialect: Dialect, into: str, tile: str, first: str, side: int, sums: SumType) -> str:
    """Return the statements that read four lines of a step: at once, if the language has vectors of the type."""
    index = f"at * {_pitch(side)} + i * 16 + {first}"
    if sums.suffix not in ("f32", "u32"):
        return f"for (int k = 0; k < 4; ++k) {into}[i + k] = {tile}[{index} + k];"
    parts = " ".join(f"{into}[i + {k}] = {into}_four.{part};" for k, part in enumerate("xyzw"))
    return f"const {dialect.four(sums.kind)} {into}_four = {dialect.load_four(sums.kind, tile, index)}; {parts}"


_RANGE = """\
const ob_i64 split = number / tiles_down / tiles_across / $BATCH;
  const ob_i64 turns = ($DEPTH + $STEPS - 1) / $STEPS;
  const ob_i64 begin = turns * split / $SPLITS * $STEPS, end = turns * (split + 1) / $SPLITS * $STEPS;
  const ob_i64 until = end < $DEPTH ? end : $DEPTH;"""

# An item has four adjacent lines, so that they are read at once, and four in each next block of 64.
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
      const ob_i64 row = first_row + i / 4 * 64 + down + i % 4, column = first_column + j / 4 * 64 + across + j % 4;
      if (row < $ROWS && column < $COLUMNS) {
        const $KIND value = sums[i * $WIDE + j];
        $END
      }
    }
  }
"""
