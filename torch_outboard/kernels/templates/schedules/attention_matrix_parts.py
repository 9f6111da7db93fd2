# SPDX-License-Identifier: BSD-3-Clause
"""Gradients that several groups compute: each stores its sums, and a second launch adds them, in the same order."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from torch_outboard.kernels.templates.call import Kernel, Layout, TemplateCall
from torch_outboard.kernels.templates.heads import Rows
from torch_outboard.kernels.templates.product import ceil_div, filled

__all__ = ["parts_of", "sum_of_parts"]


def parts_of(call: TemplateCall, result: Rows, size: tuple[Any, Any], splits: Any) -> Rows:
    """Return the memory for sums of a result with so many rows and columns: batch `split * batches + batch`."""
    (batches, heads), (rows, columns) = result.sizes, size
    strides = [heads * rows * columns, rows * columns, columns, sympy.Integer(1)]
    part = call.allocate(Layout(torch.float32, [splits * batches, heads, rows, columns], strides))
    return Rows(f"{result.name}_part", part, is_written=True)


def sum_of_parts(call: TemplateCall, name: str, result: Rows, size: tuple[Any, Any], part: Rows, splits: Any) -> Kernel:
    """Return the launch that adds the sums of all groups that share a tile."""
    kernel = Kernel(f"{name}_of_parts", group=call.dialect.group)
    (batches, heads), (rows, columns) = result.sizes, size
    result.declare(kernel)
    kernel.pointer("part", part.tensor)
    count = batches * heads * rows * columns
    words = {
        "ITEM": call.dialect.item,
        "COUNT": kernel.number("count", count),
        "HEADS": kernel.number("heads", heads),
        "ROWS": kernel.number("rows", rows),
        "COLUMNS": kernel.number("columns", columns),
        "SPLITS": kernel.number("splits", splits),
        "RESULT": f"{result.name}_from",
        "RESULT_FROM": result.begin(),
        "STORE": result.store(f"{result.name}_from", "row", "column", "value"),
    }
    kernel.text = filled(_SUM, words)
    kernel.groups = ceil_div(count, kernel.group)
    return kernel


_SUM = """\
  const ob_i64 number = $ITEM;
  if (number >= $COUNT) return;
  const ob_i64 column = number % $COLUMNS, row = number / $COLUMNS % $ROWS;
  const ob_i64 head = number / $COLUMNS / $ROWS % $HEADS, batch = number / $COLUMNS / $ROWS / $HEADS;
  const ob_i64 $RESULT = $RESULT_FROM;
  float value = 0;
  for (ob_i64 split = 0; split < $SPLITS; ++split) value += part[split * $COUNT + number];
  $STORE
"""
