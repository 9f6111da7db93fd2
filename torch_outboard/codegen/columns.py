# SPDX-License-Identifier: BSD-3-Clause
"""Reductions of columns on a CPU: an item has several neighbouring ones, so that it reads lines of memory whole.

On a GPU the items of neighbours run beside each other and read a line together. On a CPU they run one after the other:
one that had a single column would fetch a line for each of its elements, and so would the next. So each part of the
kernel's body is a loop over the item's columns, within the loop over the rows; what one part finds and a later one
reads is kept in arrays with an element a column, as accumulators are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V

from torch_outboard.codegen.mapping import columns_of_item
from torch_outboard.device.devices import get_device_properties

SimtKernel = Any  # kernel.SimtKernel, which imports this

__all__ = ["count_columns", "index_of", "is_cpu", "items", "items_formula", "reads_columns", "write_part"]


def is_cpu(device: torch.device) -> bool:
    """Says whether a device is a CPU, on which items run one after the other and have vectors of their own."""
    return get_device_properties(device).machine == "cpu"


def count_columns(kernel: SimtKernel) -> int:
    """Gives how many columns an item has, or 0 if the kernel is no reduction of columns or its device no CPU."""
    features = kernel.features
    if not features.is_reduction() or not (
        kernel.dialect.runs_on_host or is_cpu(V.graph.get_current_device_or_throw())
    ):
        return 0
    nodes = features.reduction_nodes()
    # Scans and sorts have variables of their own for a row.
    if any(isinstance(node.node.data, (ir.Scan, ir.Sort)) for node in nodes) or not all(map(reads_columns, nodes)):
        return 0
    numels = [tree.numel for tree in kernel.range_trees if tree.prefix == "x"]
    return columns_of_item(V.graph.sizevars.optimization_hint(numels[0], fallback=1024)) if numels else 0


def reads_columns(node: Any) -> bool:
    """Whether what a reduction reads lies in memory along what isn't reduced."""
    body = node._body
    if not body.iter_vars or not body.reduce_vars:
        return False
    reads = [read for read in body.get_read_exprs() if read.free_symbols & set(body.reduce_vars)]
    is_along_rows = any(read.coeff(one) == 1 for read in reads for one in body.reduce_vars)
    return not is_along_rows and any(read.coeff(body.iter_vars[-1]) == 1 for read in reads)


def items(tree: Any, size: str, columns: int) -> str:
    """Gives how many items a dimension of this size needs, as an expression."""
    return f"(({size} + {columns - 1}) / {columns})" if _is_shared(tree, columns) else size


def items_formula(tree: Any, size: str, columns: int) -> str:
    """The same in the postfix form of a launch's formulas."""
    return f"{size} {columns} ceildiv" if _is_shared(tree, columns) else size


def index_of(kernel: SimtKernel, tree: Any, number: str) -> list[str]:
    """Gives the declaration of an item's index in a dimension, or of its first column and of how many it has."""
    index, count = kernel.index_dtype, kernel.columns
    if not _is_shared(tree, count):
        return [f"const {index} {tree.prefix}index = ({index}){number};"]
    return [
        f"const {index} ob_first = ({index}){number} * {count};",
        f"const int ob_columns = xnumel - ob_first < {count} ? (int)(xnumel - ob_first) : {count};",
    ]


def _is_shared(tree: Any, columns: int) -> bool:
    return columns > 0 and bool(tree.prefix == "x")


def write_part(kernel: SimtKernel, loops: list[Any]) -> None:
    """Writes what the kernel has gathered: a loop over rows, and what comes after it, or what needs no loop."""
    body = kernel.body
    if kernel.before:
        body.writeline(f"enum {{ {kernel.lanes_name} = {kernel.columns} }};")
        body.splice(kernel.before)
    if loops:
        turn = f"const {kernel.index_dtype} turn = {kernel.open_loops(loops)};"
        _write_columns(kernel, [turn], kernel.indexing_code, kernel.compute)
        body.writeline("}" * len(loops))
        if kernel.after:
            _write_columns(kernel, [], kernel.after)
    else:
        _write_columns(kernel, [], kernel.indexing_code, kernel.compute, kernel.after)


def _write_columns(kernel: SimtKernel, first: list[str], *parts: IndentedBuffer) -> None:
    body = kernel.body
    body.writeline("for (int lane = 0; lane < ob_columns; ++lane) {")
    with body.indent(2):
        body.writeline(f"const {kernel.index_dtype} xindex = ob_first + lane;")
        body.writelines([*first, *kernel.of_column])
        for part in parts:
            body.splice(part)
    body.writeline("}")
