# SPDX-License-Identifier: BSD-3-Clause
"""Reductions by groups of items, for devices that run many items in parallel, such as GPUs.

The items of a group share rows. If a row has `along` items, each item takes every along-th element of the row, in a few
accumulators. The accumulators are joined first within the item, then through the group's memory, always in the same
order. After the join, all items of the row have the result and continue with the row together. A single item
stores a value with one element a row. It does so at the end of the kernel, after all items have read the memory that
the store overwrites. A group processes several rows at once. If columns are reduced, these rows are neighbouring
columns, so that items with neighbouring numbers read neighbouring memory.

Every item of a group reaches each barrier, so no item returns early: an item without a row has a row of no elements.

If nothing is reduced, an item has four elements. Their distance is the number of items of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES, SUFFIXES, Dialect
from torch_outboard.codegen.mapping.columns import is_cpu, reads_columns
from torch_outboard.codegen.mapping.parts import COLUMNS_OF_GROUP
from torch_outboard.codegen.prelude import needed_by

SimtKernel = Any  # kernel.SimtKernel, which imports this

__all__ = [
    "ITEMS",
    "Group",
    "cooperates",
    "declared",
    "group_of",
    "is_spread",
    "parts_of_item",
    "shared_name",
    "write_join",
    "write_loops",
    "write_number",
    "write_parts",
    "write_stores",
]

# Items of a group. If a row is too short for all of them, the others take other rows.
ITEMS = 256
# Elements of an item if nothing is reduced. A kernel with more characters than _LONG_TEXT has one element an item.
_PARTS = 4
_LONG_TEXT = 8000
# A row of no more elements belongs to a single item.
_SHORT = 16


@dataclass(frozen=True)
class Group:
    """The distribution of rows in a group: `across` rows, each shared by `along` items.

    If `is_across_first` is true, items with neighbouring numbers have neighbouring rows. Otherwise they share a row.
    """

    across: int
    along: int
    is_across_first: bool
    lanes: int

    @property
    def step(self) -> int:
        """The distance from an item to the next item of its row."""
        return self.across if self.is_across_first else 1

    @property
    def elements(self) -> int:
        """The number of elements of a row that one turn of the loop takes."""
        return self.along * self.lanes


def cooperates(dialect: Dialect, device: torch.device) -> bool:
    """Return True if items of a group share work: with groups in the dialect, except on CPUs with known vectors."""
    return dialect.has_groups and not (dialect.vectors and is_cpu(device))


def group_of(kernel: SimtKernel) -> Group | None:
    """Return how groups share the rows of a kernel; None if each item has its own row or nothing is reduced."""
    features = kernel.features
    if not features.is_reduction() or not kernel.cooperates:
        return None
    nodes = features.reduction_nodes()
    trees = [tree for tree in kernel.range_trees if tree.is_reduction]
    columns = [tree.numel for tree in kernel.range_trees if tree.prefix == "x"]
    # Scans and sorts go through a row in order.
    if len(trees) != 1 or any(isinstance(node.node.data, (ir.Scan, ir.Sort)) for node in nodes):
        return None
    row = _hint(trees[0].numel, 1024)
    if row <= _SHORT:
        return None
    has_columns = all(map(reads_columns, nodes))
    if has_columns:
        across = min(COLUMNS_OF_GROUP, _power_of_two(_hint(columns[0], 1024))) if columns else 1
        along = ITEMS // across
    else:
        along = 16 if row <= 64 else 64 if row <= 512 else ITEMS
        across = ITEMS // along
    turns = row // along
    return Group(across, along, has_columns, 4 if turns >= 8 else 2)


def is_spread(kernel: SimtKernel) -> bool:
    """Return True if the kernel reduces nothing and an item has several elements, to keep several loads in flight."""
    return not kernel.features.is_reduction() and bool(kernel.cooperates)


def parts_of_item(text: str) -> int:
    """Return how many elements an item has: one if the kernel's text is long and slow to compile."""
    return 1 if is_long(text) else _PARTS


def is_long(text: str) -> bool:
    """Return True if a text, with the parts of the prelude that it uses, takes long to compile."""
    return len(text) + sum(map(len, needed_by(text))) > _LONG_TEXT


def write_parts(parts: int, elements: str, index: str) -> list[str]:
    """Return the head of a loop over an item's elements. Beyond the last element, an item computes the last one again.

    Numbers are unsigned and have the width of the kernel's indices, since those of the last group may exceed the range.
    """
    kind = index.replace("ob_i", "ob_u")
    return [
        f"const {kind} ob_elements = ({kind})({elements});",
        f"const {kind} ob_first = ({kind})OB_GROUP_NUMBER * {ITEMS * parts} + ({kind})OB_ITEM_OF_GROUP;",
        "#pragma unroll",
        f"for (int ob_part = 0; ob_part < {parts}; ++ob_part) {{",
        f"const {kind} ob_wanted = ob_first + ({kind})(ob_part * {ITEMS});",
        "const bool ob_is_inside = ob_wanted < ob_elements;",
        f"const {index} ob_number = ({index})(ob_is_inside ? ob_wanted : ob_elements - 1);",
    ]


def _hint(size: Any, otherwise: int) -> int:
    return int(V.graph.sizevars.optimization_hint(size, fallback=otherwise))


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not less than a number."""
    return 1 << max(number - 1, 0).bit_length()


def write_number(group: Group, rows: str) -> list[str]:
    """Return the declarations of an item's place in the group, and of the number of its row."""
    row, along = f"ob_item / {group.along}", f"ob_item % {group.along}"
    if group.is_across_first:
        row, along = f"ob_item % {group.across}", f"ob_item / {group.across}"
    return [
        "const int ob_item = OB_ITEM_OF_GROUP;",
        f"const int ob_row = {row}, ob_along = {along};",
        f"const ob_i64 ob_rows = {rows};",
        f"const ob_i64 ob_wanted = OB_GROUP_NUMBER * {group.across} + ob_row;",
        "const bool ob_is_inside = ob_wanted < ob_rows;",
        "const ob_i64 ob_number = ob_is_inside ? ob_wanted : ob_rows - 1;",
    ]


def write_loops(kernel: SimtKernel, tree: Any, write_body: Callable[[str], None]) -> None:
    """Write the loops over an item's elements of its row: the lanes of whole turns, then the rest.

    The loop counters are unsigned, since a step of the group may exceed the greatest index.
    """
    group, body, index, prefix = kernel.group, kernel.body, kernel.index_dtype, tree.prefix
    count = index.replace("ob_i", "ob_u")
    if not kernel.before:
        head = f"{count} {prefix}at = ob_along; {prefix}at < ({count}){prefix}end; {prefix}at += {group.along}"
        body.writeline(f"for ({head}) {{")
        body.writeline(f"  const {index} {prefix}index = ({index}){prefix}at;")
        write_body("")
        body.writeline("}")
        return
    whole = kernel.fresh_name(f"{prefix}whole")
    body.writeline(f"const {index} {whole} = {prefix}end - {prefix}end % {group.elements};")
    head = f"{count} {prefix}base = ob_along; {prefix}base < ({count}){whole}; {prefix}base += {group.elements}"
    body.writeline(f"for ({head})")
    body.writeline("#pragma unroll")
    body.writeline(f"  for (int lane = 0; lane < {group.lanes}; ++lane) {{")
    number, turn = f"({index}){prefix}base + lane * {group.along}", f"({index})({prefix}base / {group.elements})"
    write_body(f"const {index} {prefix}index = {number}, turn = {turn};")
    body.writeline("  }")
    # The number of lanes is a constant, so that accumulators stay in registers.
    body.writeline("#pragma unroll")
    body.writeline(f"for (int lane = 0; lane < {group.lanes}; ++lane) {{")
    body.writeline(f"  const {count} {prefix}at = ({count}){whole} + lane * {group.along} + ob_along;")
    body.writeline(f"  if ({prefix}at < ({count}){prefix}end) {{")
    write_body(f"const {index} {prefix}index = ({index}){prefix}at, turn = {whole} / {group.elements};")
    body.writeline("  }")
    body.writeline("}")


def write_join(
    kernel: SimtKernel, arrays: list[tuple[str, torch.dtype]], lines: Callable[[str, str], list[str]]
) -> None:
    """Write the join of accumulators after the loop. Each item then has the row's result in the first lane.

    `lines` returns the statements that join lane b into lane a. A few items join the accumulators of all items, then
    every item joins the accumulators of these few.
    """
    group, after = kernel.group, kernel.after
    lanes = group.lanes
    while lanes > 1:
        lanes //= 2
        for lane in range(lanes):
            after.writelines(lines(str(lane), str(lane + lanes)))
    shared = [(name, kernel.shared(dtype, number)) for number, (name, dtype) in enumerate(arrays)]
    few = group.along if group.along <= 16 else 1 << (group.along.bit_length() // 2)
    write = " ".join(f"{place}[ob_item] = {name}[0];" for name, place in shared)

    def join_from(place: str) -> None:
        after.writeline("  " + " ".join(f"{name}[1] = {memory}[{place}];" for name, memory in shared))
        after.writelines("  " + line for line in lines("0", "1"))

    after.writeline("OB_BARRIER;")
    after.writeline(write)
    after.writeline("OB_BARRIER;")
    if few < group.along:
        after.writeline(f"if (ob_along < {few}) {{")
        after.writeline(f"  for (int other = {few}; other < {group.along}; other += {few}) {{")
        join_from(f"ob_item + other * {group.step}")
        after.writeline("  }")
        after.writeline(f"  {write}")
        after.writeline("}")
        after.writeline("OB_BARRIER;")
    first = f"ob_item - ob_along * {group.step}"
    after.writeline(" ".join(f"{name}[0] = {place}[{first}];" for name, place in shared))
    after.writeline(f"for (int other = 1; other < {few}; ++other) {{")
    join_from(f"{first} + other * {group.step}")
    after.writeline("}")


def shared_name(dtype: torch.dtype, number: int) -> str:
    """Return the name of the group's memory for the accumulators of a type."""
    return f"ob_shared_{SUFFIXES[dtype]}_{number}"


def declared(shared: dict[str, torch.dtype]) -> list[str]:
    """Return the declarations of the group's memory."""
    return [f"OB_LOCAL {COMPUTE_TYPES[dtype]} {name}[{ITEMS}];" for name, dtype in shared.items()]


def write_stores(kernel: SimtKernel, code: Any) -> None:
    """Write the stores of values that have one element a row."""
    code.writeline("OB_BARRIER;")
    code.writeline("if (ob_along == 0 && ob_is_inside) {")
    with code.indent():
        code.splice(kernel.stores_of_row)
    code.writeline("}")
