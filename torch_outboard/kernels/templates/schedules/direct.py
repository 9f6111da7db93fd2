# SPDX-License-Identifier: BSD-3-Clause
"""The schedule for GPUs of products with few rows and columns but many batches: each item computes one result.

Convolutions with many groups are such products: they would fill only a row or two of a tile. Adjacent items compute
adjacent results. If there are few results with long sums, several items share the steps of a result.
"""

from __future__ import annotations

import re
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.kernels.templates.call import Kernel, TemplateCall, simplified
from torch_outboard.kernels.templates.channels import holds
from torch_outboard.kernels.templates.product import Epilogue, Operand, Product, filled, statements
from torch_outboard.kernels.templates.schedules.parts import (
    allocate_parts,
    epilogue_of_parts,
    range_of_split,
    sum_of_parts,
)

__all__ = ["multiply"]

# Items that keep a large device busy, and the smallest number of steps worth splitting off.
_ENOUGH_ITEMS, _MIN_STEPS_OF_PART = 1 << 18, 64
# Loops of more steps are not unrolled.
_MAX_UNROLLED_STEPS = 64


def multiply(call: TemplateCall, product: Product, kind: str) -> None:
    """Write the launches of a product; `kind` is the type of the numbers that count results and steps."""
    count = product.batch * product.rows * product.columns
    if holds(sympy.Ge(count, _ENOUGH_ITEMS // 4)) or not holds(sympy.Ge(product.depth, 2 * _MIN_STEPS_OF_PART)):
        call.launch(_kernel(call, product, product.epilogue, kind))
        return
    wanted = FloorDiv(_ENOUGH_ITEMS, sympy.Max(sympy.Integer(1), count))
    splits = simplified(sympy.Max(sympy.Integer(1), sympy.Min(wanted, FloorDiv(product.depth, _MIN_STEPS_OF_PART))))
    part = allocate_parts(call, product, splits)
    call.launch(
        _kernel(call, product, epilogue_of_parts(part), kind, splits), sum_of_parts(call, product, part, splits)
    )
    call.free(part)


def _kernel(call: TemplateCall, product: Product, epilogue: Epilogue, kind: str, splits: Any = None) -> Kernel:
    kernel = Kernel(f"{product.name}_of_items", product.before)
    words = product.sizes(kernel)
    for side in (product.left, product.right, epilogue):
        side.declare(kernel)
    known = simplified(product.depth)
    is_unrolled = isinstance(known, sympy.Integer) and known <= _MAX_UNROLLED_STEPS
    # Results of adjacent batches, such as channels, are adjacent in memory if results of adjacent
    # rows are.
    has_batches_first = product.epilogue.dense == "row" or splits is not None
    words |= {
        "INDEX": kind,
        "ITEM": call.dialect.item,
        "SUM": product.sums.kind,
        "UNROLL": call.dialect.unroll if is_unrolled else "",
        "PLACES": _BATCHES_FIRST if has_batches_first else _COLUMNS_FIRST,
        "LINES": _lines(product.left, "row") + _lines(product.right, "column"),
        "LEFT_STEP": product.left.of_step,
        "LEFT": product.left.element(product.sums),
        "RIGHT_STEP": product.right.of_step,
        "RIGHT": product.right.element(product.sums),
        "SPLITS": kernel.number("splits", splits) if splits is not None else "1",
        "RANGE": range_of_split("$DEPTH", kind) if splits is not None else _WHOLE,
        "END": epilogue.store,
    }
    kernel.text = filled(_TEXT, words)
    count = product.batch * product.rows * product.columns * (1 if splits is None else splits)
    kernel.spread(call, count, 128)
    return kernel


def _lines(operand: Operand, line: str) -> str:
    """Return the statements that compute the numbers of a row or a column."""
    return re.sub(r"\bline\b", line, statements(operand.of_line))


_BATCHES_FIRST = """\
const ob_i64 batch = ($INDEX)number % ($INDEX)$BATCH, others = ($INDEX)number / ($INDEX)$BATCH;
  const ob_i64 row = ($INDEX)others % ($INDEX)$ROWS, column = ($INDEX)others / ($INDEX)$ROWS % ($INDEX)$COLUMNS;
  const ob_i64 split = ($INDEX)others / ($INDEX)$ROWS / ($INDEX)$COLUMNS;"""
_COLUMNS_FIRST = """\
const ob_i64 column = ($INDEX)number % ($INDEX)$COLUMNS, others = ($INDEX)number / ($INDEX)$COLUMNS;
  const ob_i64 row = ($INDEX)others % ($INDEX)$ROWS, batch = ($INDEX)others / ($INDEX)$ROWS % ($INDEX)$BATCH;
  const ob_i64 split = ($INDEX)others / ($INDEX)$ROWS / ($INDEX)$BATCH;"""

_WHOLE = "const $INDEX from_count = 0, to_count = ($INDEX)$DEPTH;"

_TEXT = """\
  const ob_i64 number = $ITEM;
  if (number >= $BATCH * $ROWS * $COLUMNS * $SPLITS) return;
  $PLACES
  $LINES
  $RANGE
  $SUM value = 0;
  $UNROLL
  for ($INDEX step = from_count; step < to_count; ++step) {
    $SUM left_element, right_element;
    {
      $LEFT_STEP
      left_element = $LEFT;
    }
    {
      $RIGHT_STEP
      right_element = $RIGHT;
    }
    value = OB_LIB(fma)(left_element, right_element, value);
  }
  $END
"""
