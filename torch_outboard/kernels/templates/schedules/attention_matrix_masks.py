# SPDX-License-Identifier: BSD-3-Clause
"""The gradient of attention's mask for devices with matrix units.

A group processes one tile of the mask, and iterates over the batches and heads that add this tile to their scores. It
computes their slopes as for the queries' gradients, and sums them in registers. If many batches and heads share few
tiles, several groups share a tile, and a second launch adds their sums. Results are deterministic.
"""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.codegen.dialects.units import unit_of
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, simplified
from torch_outboard.kernels.templates.channels import holds
from torch_outboard.kernels.templates.heads import Attention, Gradients, Rows
from torch_outboard.kernels.templates.product import ceil_div, filled
from torch_outboard.kernels.templates.schedules.attention_matrix_gradients import (
    SideKernel,
    Sizes,
    differentiate_sides,
)
from torch_outboard.kernels.templates.schedules.attention_matrix_parts import parts_of, sum_of_parts
from torch_outboard.kernels.templates.schedules.matrix_epilogues import stores
from torch_outboard.kernels.templates.schedules.matrix_sides import lay_out
from torch_outboard.kernels.templates.schedules.parts import range_of_split

__all__ = ["differentiate"]

# Groups that keep a large device busy, and the smallest number of batches and heads that justifies
# a group.
_ENOUGH_GROUPS, _MIN_HEADS_PER_GROUP = 512, 8


def differentiate(call: TemplateCall, attention: Attention, gradients: Gradients) -> None:
    """Write the launches of the gradients."""
    differentiate_sides(call, attention, gradients)
    if gradients.of_mask is not None:
        _launch(call, attention, gradients, gradients.of_mask)


def _launch(call: TemplateCall, attention: Attention, gradients: Gradients, result: Rows) -> None:
    unit = unit_of(call.dialect.units, call.dtype)
    assert unit is not None  # otherwise this way would not serve the call
    sizes = Sizes.of_mask(unit, attention)
    batches, heads = result.sizes
    tiles = batches * heads * ceil_div(attention.queries, sizes.rows) * ceil_div(attention.keys, sizes.columns)
    shared = FloorDiv(attention.batch, batches) * FloorDiv(attention.heads, heads)
    if not (holds(sympy.Lt(tiles, _ENOUGH_GROUPS // 2)) and holds(sympy.Ge(shared, 2 * _MIN_HEADS_PER_GROUP))):
        call.launch(_kernel(call, attention, gradients, sizes, result, result, sympy.Integer(1)))
        return
    splits = simplified(
        sympy.Max(sympy.Integer(1), sympy.Min(FloorDiv(shared, _MIN_HEADS_PER_GROUP), FloorDiv(_ENOUGH_GROUPS, tiles)))
    )
    size = (attention.queries, attention.keys)
    part = parts_of(call, result, size, splits)
    kernel = _kernel(call, attention, gradients, sizes, result, part, splits)
    call.launch(kernel, sum_of_parts(call, "ob_attention_of_mask", result, size, part, splits))
    call.free(part.tensor)


def _kernel(
    call: TemplateCall, attention: Attention, gradients: Gradients, sizes: Sizes, mask: Rows, result: Rows, splits: Any
) -> Kernel:
    """Return the launch that stores each group's sums."""
    unit = sizes.unit
    sides, tiling = SideKernel(call, attention, gradients, sizes, of_keys=False), sizes.tiling()
    kernel = Kernel("ob_attention_of_mask_of_units", unit.header, group=tiling.group)
    rows = (attention.query, attention.key, attention.value, gradients.grad, gradients.logsumexp, gradients.delta)
    words = attention.declare(kernel, *rows, result)
    kept, tiles = sides.queries(), sides.keys()
    lay_out(kernel, *kept, *tiles)
    batches, heads = mask.sizes
    words |= (
        sides.words()
        | sides.load_words(kept, tiles)
        | stores(result.epilogue("value"), unit, ("row", "column"), sizes.columns // unit.n)
    )
    words |= {
        "MASK_BATCHES": kernel.number("mask_batches", batches),
        "MASK_HEADS": kernel.number("mask_heads", heads),
        "SPLITS": kernel.number("splits", splits),
        "OF_SPLIT": range_of_split("is_left_out ? 0 : $SHARED_BATCHES * $SHARED_HEADS"),
        "SHARED_BATCHES": kernel.number("shared_batches", FloorDiv(attention.batch, batches)),
        "SHARED_HEADS": kernel.number("shared_heads", FloorDiv(attention.heads, heads)),
        "PUT": "",
        "PRODUCTS": _ADD,
        "RESULT": f"{result.name}_from",
        "RESULT_FROM": result.begin(),
        "ROW": "row",
        "COLUMN": "column",
        "ROWS": "$QUERIES",
        "COLUMNS": "$KEYS",
    }
    kernel.text = filled(_TEXT, words)
    kernel.groups = (
        batches * heads * ceil_div(attention.queries, sizes.rows) * ceil_div(attention.keys, sizes.columns) * splits
    )
    return kernel


_ADD = """\
    $UNROLL
    for (int i = 0; i < $ACROSS * $RESULTS; ++i) sums[i] += slopes[i];
"""

_TEXT = """\
  const ob_u32 item = OB_ITEM_OF_GROUP;
  const ob_u32 lane = item % $LANES;
  const ob_u32 part_row = item / $LANES * $UNIT_ROWS;
  const ob_i64 tiles_down = ($QUERIES + $KEPT_TILE - 1) / $KEPT_TILE;
  const ob_i64 tiles_across = ($KEYS + $OTHER_TILE - 1) / $OTHER_TILE;
  const ob_i64 number = OB_GROUP_NUMBER, of_all = number / tiles_across / tiles_down;
  const ob_i64 of_head = of_all % ($MASK_BATCHES * $MASK_HEADS), split = of_all / ($MASK_BATCHES * $MASK_HEADS);
  const ob_i64 first_kept = number / tiles_across % tiles_down * $KEPT_TILE;
  const ob_i64 first_other = number % tiles_across * $OTHER_TILE, first_tile = first_other;
  const ob_i64 first_batch = of_head / $MASK_HEADS * $SHARED_BATCHES;
  const ob_i64 first_head = of_head % $MASK_HEADS * $SHARED_HEADS;
  const bool is_left_out = $IS_CAUSAL && first_other >= first_kept + $KEPT_TILE;
  $OF_SPLIT
  float sums[$ACROSS * $RESULTS];
  $UNROLL
  for (int i = 0; i < $ACROSS * $RESULTS; ++i) sums[i] = 0;
  for (ob_i64 member = from_count; member < to_count; ++member) {
    const ob_i64 batch = first_batch + member / $SHARED_HEADS, head = first_head + member % $SHARED_HEADS;
    const ob_i64 key_head = head / $GROUP;
    $BEGINS
    $MASK_BEGIN
    $DROP_BEGIN
$DECLARE
    OB_BARRIER;
$NUMBERS_OF_KEPT
    {
      const ob_i64 next = first_other;
      const int from_step = 0;
$BRING_KEPT
$BEGIN
$FINISH
      $COMMIT
      $WAIT
    }
    OB_BARRIER;
$COMPUTE
  }
  const ob_i64 batch = split * $MASK_BATCHES + of_head / $MASK_HEADS, head = of_head % $MASK_HEADS;
  const ob_i64 $RESULT = $RESULT_FROM;
  const ob_i64 first_row = first_kept, first_column = first_other;
  const int part_column = 0;
$STORE"""
