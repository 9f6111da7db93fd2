# SPDX-License-Identifier: BSD-3-Clause
"""Gradients computed by several groups: each stores its sums, and a second launch adds them in a fixed order."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from torch_outboard.kernels.templates.call import Kernel, Layout, TemplateCall
from torch_outboard.kernels.templates.heads import Rows
from torch_outboard.kernels.templates.schedules.parts import add_parts

__all__ = ["parts_of", "sum_of_parts"]


def parts_of(call: TemplateCall, result: Rows, size: tuple[Any, Any], splits: Any) -> Rows:
    """Return the memory for the sums of a result of this size: the batch index is `split * batches + batch`."""
    (batches, heads), (rows, columns) = result.sizes, size
    strides = [heads * rows * columns, rows * columns, columns, sympy.Integer(1)]
    part = call.allocate(Layout(torch.float32, [splits * batches, heads, rows, columns], strides))
    return Rows(f"{result.name}_part", part, is_written=True)


def sum_of_parts(call: TemplateCall, name: str, result: Rows, size: tuple[Any, Any], part: Rows, splits: Any) -> Kernel:
    """Return the launch that adds the sums of all groups that share a tile."""
    kernel = Kernel(f"{name}_of_parts")
    (batches, heads), (rows, columns) = result.sizes, size
    result.declare(kernel)
    of_heads = f"batch = outer / $HEADS, head = outer % $HEADS, {result.name}_from = {result.begin()}"
    words = {
        "HEADS": kernel.number("heads", heads),
        "OUTER": "outer",
        "OUTERS": f"{kernel.number('batches', batches)} * $HEADS",
        "ROWS": kernel.number("rows", rows),
        "COLUMNS": kernel.number("columns", columns),
        "ROW": "row",
        "COLUMN": "column",
        "OF_OUTER": f"  const ob_i64 {of_heads};\n",
        "END": result.store(f"{result.name}_from", "row", "column", "value"),
    }
    add_parts(call, kernel, part.tensor, batches * heads * rows * columns, splits, words)
    return kernel
