# SPDX-License-Identifier: BSD-3-Clause
"""Guards of plans that reduce: such a plan is valid for sizes of the traced call's order of magnitude.

Kernels fix how items share rows and into how many parts rows are split. For much larger sizes, a single group of items
on a GPU would do the work of a thousand groups. On a CPU, one item would sum a long row while other processors are
idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.mapping.machine import groups_share_work
from torch_outboard.codegen.mapping.parts import MANY_ROWS

__all__ = ["guard_magnitudes"]

# The bounds between orders of magnitude.
_BOUNDS = (16, 512, 1 << 13, 1 << 17, 1 << 21, 1 << 25)
# On a CPU, rows are split if there are only a few, and they are longer than the first of these
# bounds.
_LONG_ROWS = _BOUNDS[2:]
_FEW_ROWS = 512


def guard_magnitudes(graph: GraphLowering, dialect: Dialect, device: torch.device) -> None:
    """Guard the orders of magnitude of rows, of their elements and of both, for each reduction of a lowered graph.

    On a CPU, only the length of rows is guarded, and for long rows also whether there are few.
    """
    is_shared = groups_share_work(dialect, device)
    for operation in graph.operations:
        data = getattr(operation, "data", None)
        if isinstance(data, ir.Reduction):
            rows, row = (sympy.Mul(*sizes) for sizes in (data.ranges, data.reduction_ranges))
            if is_shared:
                is_long = _guard(graph, row, _BOUNDS) > _LONG_ROWS[0]
                _guard(graph, rows, sorted((*_BOUNDS, MANY_ROWS)) if is_long else _BOUNDS)
                _guard(graph, rows * row, _BOUNDS)
            elif _guard(graph, row, _LONG_ROWS) > _LONG_ROWS[0]:
                _guard(graph, rows, (_FEW_ROWS,))


def _guard(graph: GraphLowering, size: Any, bounds: Sequence[int]) -> int:
    """Guard the order of magnitude of a size, and return the size's current value."""
    size = graph.sizevars.simplify(size)
    if isinstance(size, sympy.Integer):
        return int(size)
    now = int(graph.sizevars.optimization_hint(size, fallback=0))
    above = [bound for bound in bounds if now <= bound]
    below = [bound for bound in bounds if now > bound]
    if above:
        graph.sizevars.evaluate_expr(sympy.Le(size, above[0]))
    if below:
        graph.sizevars.evaluate_expr(sympy.Gt(size, below[-1]))
    return now
