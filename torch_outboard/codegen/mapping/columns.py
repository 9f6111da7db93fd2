# SPDX-License-Identifier: BSD-3-Clause
"""Reductions of columns on a CPU: an item has several neighbouring columns, so that it reads whole cache lines.

On a GPU, neighbouring items run in parallel and read a cache line together. A CPU runs them one after the other. An
item with a single column would fetch a line for each of its elements, and so would the next item. So each part of the
kernel's body is a loop over the item's columns, inside the loop over the rows. Values that one part computes and a
later part reads are kept in arrays with an element a column, like accumulators.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V

from torch_outboard.codegen.mapping.parts import columns_of_item
from torch_outboard.device.devices import get_device_properties

SimtKernel = Any  # kernel.SimtKernel, which imports this

__all__ = ["count_columns", "index_of", "is_cpu", "items", "items_formula", "reads_columns", "write_part"]


def is_cpu(device: torch.device) -> bool:
    """Return True if a device is a CPU, on which items run one after the other and use vectors."""
    return get_device_properties(device).machine == "cpu"


def count_columns(kernel: SimtKernel) -> int:
    """Return how many columns an item has; 0 if the kernel does not reduce columns or the device is not a CPU."""
    features = kernel.features
    if not features.is_reduction() or not (
        kernel.dialect.runs_on_host or is_cpu(V.graph.get_current_device_or_throw())
    ):
        return 0
    nodes = features.reduction_nodes()
    # Scans and sorts have their own variables for a row.
    if any(isinstance(node.node.data, (ir.Scan, ir.Sort)) for node in nodes) or not all(map(reads_columns, nodes)):
        return 0
    numels = [tree.numel for tree in kernel.range_trees if tree.prefix == "x"]
    return columns_of_item(V.graph.sizevars.optimization_hint(numels[0], fallback=1024)) if numels else 0


def reads_columns(node: Any) -> bool:
    """Return True if the memory that a reduction reads is contiguous along the dimensions that are not reduced."""
    body = node._body
    if not body.iter_vars or not body.reduce_vars:
        return False
    reads = [read for read in body.get_read_exprs() if read.free_symbols & set(body.reduce_vars)]
    is_along_rows = any(read.coeff(one) == 1 for read in reads for one in body.reduce_vars)
    return not is_along_rows and any(read.coeff(body.iter_vars[-1]) == 1 for read in reads)


def items(tree: Any, size: str, columns: int) -> str:
    """Return how many items a dimension of this size needs, as an expression."""
    return f"(({size} + {columns - 1}) / {columns})" if _is_shared(tree, columns) else size


def items_formula(tree: Any, size: str, columns: int) -> str:
    """Return the number of items in the postfix form of a launch's formulas."""
    return f"{size} {columns} ceildiv" if _is_shared(tree, columns) else size


def index_of(kernel: SimtKernel, tree: Any, number: str) -> list[str]:
    """Return the declaration of an item's index in a dimension, or of its first column and its number of columns."""
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
    """Write the code that the kernel has gathered: a loop over rows and the code after it, or code without a loop."""
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
