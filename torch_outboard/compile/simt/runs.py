# SPDX-License-Identifier: BSD-3-Clause
"""Loops over neighbouring elements on a CPU, of which its compiler makes vectors.

Items of a CPU run one after the other. A runtime may make vectors of neighbouring items, but one that returns early
keeps it from that, and it takes narrower vectors than the CPU has. So an item has a run of neighbours, in a loop that
is marked as one of vectors (OB_VECTORS of a dialect's header); in a reduction the loop over its lanes is, and one over
a row whose elements don't depend on each other.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.virtualized import V

from torch_outboard.compile.simt import groups
from torch_outboard.compile.simt.columns import is_cpu

SimtKernel = Any  # kernel.SimtKernel, which imports this

__all__ = ["ELEMENTS", "is_run", "vectors", "write_run"]

# Of a run: few enough to share small tensors between cores, and enough to pay for a group's launch.
ELEMENTS = 1024


def is_run(kernel: SimtKernel) -> bool:
    """Says whether an item has a run of neighbouring elements: where nothing is reduced, on a CPU.

    Kernels that are functions of the host's C++ are a loop over their items already.
    """
    return not (kernel.features.is_reduction() or kernel.cooperates or kernel.dialect.runs_on_host) and is_cpu(
        V.graph.get_current_device_or_throw()
    )


def vectors(kernel: SimtKernel, count: int) -> list[str]:
    """Gives the line before a loop over elements that don't depend on each other, if it may become one of vectors.

    `count` is how many vectors a turn has: one in a loop over lanes, which are no more. A long text would take long to
    compile.
    """
    is_short = not groups.is_long(kernel.body.getvalue() + kernel.compute.getvalue())
    is_for_vectors = not kernel.cooperates and is_cpu(V.graph.get_current_device_or_throw())
    return [f"OB_VECTORS({count})"] if is_short and is_for_vectors else []


def write_run(kernel: SimtKernel, elements: str) -> list[str]:
    """Gives the head of a loop over an item's elements. Their numbers have the width of the kernel's indices."""
    index = kernel.index_dtype
    return [
        f"const ob_i64 ob_begin = {kernel.dialect.item} * {ELEMENTS};",
        f"if (ob_begin >= {elements}) return;",
        f"const {index} ob_end = ({index})({elements} - ob_begin < {ELEMENTS} ? {elements} : ob_begin + {ELEMENTS});",
        *vectors(kernel, 2),
        f"for ({index} ob_number = ({index})ob_begin; ob_number < ob_end; ++ob_number) {{",
    ]
