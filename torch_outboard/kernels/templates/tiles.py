# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of products for GPUs: tiles in the memory of a group of items, several results of an item in registers.

A group of 256 items has a tile of 64 by 64 results, an item 4 by 4 of them. Sixteen steps of both operands are brought
to local memory at a time; neighbouring items load what lies beside one another in memory.
"""

from __future__ import annotations

from torch_outboard.kernels.templates.call import Kernel, TemplateCall
from torch_outboard.kernels.templates.product import Operand, Product, ceil_div, filled

__all__ = ["multiply"]

_TILE = 64
_STEPS = 16
_GROUP = 256
_LOADS = _TILE * _STEPS // _GROUP  # elements of each operand that an item brings


def multiply(call: TemplateCall, product: Product) -> None:
    """Writes the launch of a product."""
    kernel = Kernel(f"{product.name}_of_tiles", product.before)
    sizes = product.sizes(kernel)
    product.left.declare(kernel)
    product.right.declare(kernel)
    declare, end = product.end
    declare(kernel)
    words = {
        **sizes,
        "KIND": product.sums.kind,
        "TILE": str(_TILE),
        "STEPS": str(_STEPS),
        "FIND_LEFT": _find(product.left, "first_row", "$ROWS"),
        "FIND_RIGHT": _find(product.right, "first_column", "$COLUMNS"),
        "BRING_LEFT": _bring(product.left, "left_tile"),
        "BRING_RIGHT": _bring(product.right, "right_tile"),
        "END": end,
        # Fused by name: where an item is one of many it is an instruction, and dialects fuse nothing by themselves.
        "SUM": "OB_LIB(fma)(l[i], r[j], sums[i * 4 + j])"
        if product.sums.dtype.is_floating_point
        else "l[i] * r[j] + sums[i * 4 + j]",
    }
    kernel.text, kernel.group = filled(_TEXT, words), _GROUP
    kernel.groups = product.batch * ceil_div(product.rows, _TILE) * ceil_div(product.columns, _TILE)
    call.launch(kernel)


def _place(operand: Operand) -> str:
    """Which line and step of the tile an item brings."""
    if operand.is_dense_along_steps:
        return f"const int at_line = (item + load * {_GROUP}) / {_STEPS}, at_step = item % {_STEPS};"
    return f"const int at_line = item % {_TILE}, at_step = (item + load * {_GROUP}) / {_TILE};"


def _find(operand: Operand, first: str, size: str) -> str:
    """The numbers of the lines that an item brings."""
    return f"""\
  {operand.arrays(_LOADS)}
  for (int load = 0; load < {_LOADS}; ++load) {{
    {_place(operand)}
    // What is beyond the last line is computed and not stored.
    const ob_i64 line = {first} + at_line < {size} ? {first} + at_line : {size} - 1;
    {operand.computed()}
    {operand.lines("load")}
  }}
"""


def _bring(operand: Operand, tile: str) -> str:
    return f"""\
    for (int load = 0; load < {_LOADS}; ++load) {{
      {_place(operand)}
      const ob_i64 step = first_step + at_step;
      {operand.again("load")}
      $KIND element = 0;
      if (step < $DEPTH) {{
        {operand.of_step}
        element = {operand.element};
      }}
      {tile}[at_step * {_TILE + 1} + at_line] = element;
    }}
"""


_TEXT = """\
  OB_LOCAL $KIND left_tile[$STEPS * ($TILE + 1)];
  OB_LOCAL $KIND right_tile[$STEPS * ($TILE + 1)];
  const int item = OB_ITEM_OF_GROUP;
  const ob_i64 number = OB_GROUP_NUMBER;
  const ob_i64 tiles_down = ($ROWS + $TILE - 1) / $TILE;
  const ob_i64 tiles_across = ($COLUMNS + $TILE - 1) / $TILE;
  const ob_i64 first_row = number % tiles_down * $TILE;
  const ob_i64 first_column = number / tiles_down % tiles_across * $TILE;
  const ob_i64 batch = number / tiles_down / tiles_across;
  const int across = item % 16, down = item / 16;
  $KIND sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = 0;
$FIND_LEFT
$FIND_RIGHT
  for (ob_i64 first_step = 0; first_step < $DEPTH; first_step += $STEPS) {
$BRING_LEFT
$BRING_RIGHT
    OB_BARRIER;
    for (int at = 0; at < $STEPS; ++at) {
      $KIND l[4], r[4];
      for (int i = 0; i < 4; ++i) l[i] = left_tile[at * ($TILE + 1) + down + i * 16];
      for (int i = 0; i < 4; ++i) r[i] = right_tile[at * ($TILE + 1) + across + i * 16];
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sums[i * 4 + j] = $SUM;
    }
    OB_BARRIER;
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const ob_i64 row = first_row + down + i * 16, column = first_column + across + j * 16;
      if (row < $ROWS && column < $COLUMNS) {
        const $KIND value = sums[i * 4 + j];
        $END
      }
    }
"""
