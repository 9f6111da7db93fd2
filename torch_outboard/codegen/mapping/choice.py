# SPDX-License-Identifier: BSD-3-Clause
"""The choice of a kernel's mapping, based on the machine, the kernel's reductions, and its memory accesses."""

from __future__ import annotations

from typing import Any

from torch._inductor import ir
from torch._inductor.virtualized import V

from torch_outboard.codegen.mapping.columns import Columns, reads_columns
from torch_outboard.codegen.mapping.group import Group, Shape
from torch_outboard.codegen.mapping.item import Item
from torch_outboard.codegen.mapping.machine import groups_share_work, is_cpu, limits_of
from torch_outboard.codegen.mapping.mapping import Body, Mapping
from torch_outboard.codegen.mapping.parts import COLUMNS_OF_GROUP, columns_of_item
from torch_outboard.codegen.mapping.run import Run
from torch_outboard.codegen.mapping.spread import Spread

__all__ = ["choose_mapping"]

# A row with at most this many elements belongs to a single item.
_MAX_ROW_OF_ITEM = 16
# Bytes of group memory per item in the largest reduction with several results.
_GROUP_BYTES_PER_ITEM = 64


def choose_mapping(kernel: Body) -> Mapping:
    """Return the mapping for a kernel whose nodes are known and whose body is still empty."""
    device = V.graph.get_current_device_or_throw()
    is_parallel, limits = groups_share_work(kernel.dialect, device), limits_of(kernel.dialect, device)
    items = min(kernel.dialect.group, limits.items)
    if not kernel.features.is_reduction():
        if is_parallel:
            return Spread(kernel, is_parallel, limits.items)
        # Functions in the host's C++ already loop over their items.
        is_run = not kernel.dialect.runs_on_host and is_cpu(device)
        return Run(kernel, is_parallel) if is_run else Item(kernel, is_parallel, items)
    nodes = kernel.features.reduction_nodes()
    # Scans and sorts process a row in order, and have their own variables for it.
    if any(isinstance(node.node.data, (ir.Scan, ir.Sort)) for node in nodes):
        return Item(kernel, is_parallel, items)
    if is_parallel and (shape := _shape_of_group(kernel, nodes, limits.items_with(_GROUP_BYTES_PER_ITEM))) is not None:
        return Group(kernel, is_parallel, shape)
    if (kernel.dialect.runs_on_host or is_cpu(device)) and all(map(reads_columns, nodes)):
        numels = [tree.numel for tree in kernel.range_trees if tree.prefix == "x"]
        if numels:
            return Columns(kernel, is_parallel, items, columns_of_item(_hint(numels[0])))
    return Item(kernel, is_parallel, items)


def _shape_of_group(kernel: Body, nodes: list[Any], items: int) -> Shape | None:
    """Return how groups of `items` share the rows of a kernel, or None if each row belongs to one item."""
    trees = [tree for tree in kernel.range_trees if tree.is_reduction]
    columns = [tree.numel for tree in kernel.range_trees if tree.prefix == "x"]
    if len(trees) != 1:
        return None
    row = _hint(trees[0].numel)
    if row <= _MAX_ROW_OF_ITEM:
        return None
    has_columns = all(map(reads_columns, nodes))
    if has_columns:
        # Use at most an eighth of a group's items as columns, so that several items share each
        # column.
        most = min(COLUMNS_OF_GROUP, max(items // 8, 1))
        across = min(most, _power_of_two(_hint(columns[0]))) if columns else 1
        along = items // across
    else:
        along = min(16 if row <= 64 else 64 if row <= 512 else items, items)
        across = items // along
    turns = row // along
    return Shape(across, along, has_columns, 4 if turns >= 8 else 2)


def _hint(size: Any) -> int:
    return int(V.graph.sizevars.optimization_hint(size, fallback=1024))


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not less than a number."""
    return 1 << max(number - 1, 0).bit_length()
