# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of devices on which many items run beside each other, such as GPUs: reductions by groups of items.

The items of a group share rows: of `along` items each has every along-th element of a row, in a few accumulators, which
are joined first in the item, then by way of the group's memory, always in the same order. Then all of them have the
result and go on with the row together; what has one element a row one of them stores, at the end of the kernel, after
all have read what is written there. A group has several rows at once: where columns are reduced neighbouring ones, so
that items of neighbouring numbers read what lies beside each other.

All items of a group reach each barrier, so none returns early: an item without a row has one of no elements.

Where nothing is reduced an item has four elements, as far from each other as the group has items.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from torch_outboard.codegen.columns import is_cpu, reads_columns
from torch_outboard.codegen.dialect import COMPUTE_TYPES, SUFFIXES, Dialect
from torch_outboard.codegen.helpers import needed_by
from torch_outboard.codegen.mapping import COLUMNS_OF_GROUP

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

# Items of a group. What a row of few elements would leave idle has other rows.
ITEMS = 256
# Elements of an item where nothing is reduced, and from how many characters on a kernel has one.
_PARTS = 4
_LONG_TEXT = 8000
# A row of no more elements is one item's.
_SHORT = 16


@dataclass(frozen=True)
class Group:
    """How a group shares its rows: `across` of them, each by `along` items.

    `is_across_first` says that items of neighbouring numbers have neighbouring rows, else they share one.
    """

    across: int
    along: int
    is_across_first: bool
    lanes: int

    @property
    def step(self) -> int:
        """From an item to the next of its row."""
        return self.across if self.is_across_first else 1

    @property
    def elements(self) -> int:
        """Those of a row that a turn of the loop takes."""
        return self.along * self.lanes


def cooperates(dialect: Dialect, device: torch.device) -> bool:
    """Says whether items of a group share work: where there are groups, but on CPUs whose vectors are known."""
    return dialect.has_groups and not (dialect.vectors and is_cpu(device))


def group_of(kernel: SimtKernel) -> Group | None:
    """Gives how groups share the rows of a kernel; None if each item has a row of its own, or nothing is reduced."""
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
    """Says whether items of a kernel that reduces nothing have several elements, several loads under way at once."""
    return not kernel.features.is_reduction() and bool(kernel.cooperates)


def parts_of_item(text: str) -> int:
    """Gives how many elements an item has: one where each takes long, and its text is long to compile."""
    return 1 if is_long(text) else _PARTS


def is_long(text: str) -> bool:
    """Whether a text, with what it uses of the prelude, takes long to compile."""
    return len(text) + sum(map(len, needed_by(text))) > _LONG_TEXT


def write_parts(parts: int, elements: str, index: str) -> list[str]:
    """Gives the head of a loop over an item's elements. Beyond the last one an item computes that again.

    Numbers have the width of the kernel's indices, without a sign: those of the last group may go beyond.
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
    """The least that is no less than a number."""
    return 1 << max(number - 1, 0).bit_length()


def write_number(group: Group, rows: str) -> list[str]:
    """Gives the declarations of an item's part of the group, and of the number of its row."""
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
    """Writes the loops over an item's elements of its row: the lanes of whole turns, then what is left.

    What counts them has no sign: a step of the group may go beyond the greatest index.
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
    # With a number of lanes that is known, so that accumulators stay in registers.
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
    """Has accumulators joined after the loop, so that each item has the row's in their first lane.

    `lines` say how lane b goes into lane a. Some items join those of all, then every item joins what these have.
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
    """Gives the name of the group's memory for the accumulators of a type."""
    return f"ob_shared_{SUFFIXES[dtype]}_{number}"


def declared(shared: dict[str, torch.dtype]) -> list[str]:
    """Gives the declarations of the group's memory."""
    return [f"OB_LOCAL {COMPUTE_TYPES[dtype]} {name}[{ITEMS}];" for name, dtype in shared.items()]


def write_stores(kernel: SimtKernel, code: Any) -> None:
    """Writes the stores of what has one element a row."""
    code.writeline("OB_BARRIER;")
    code.writeline("if (ob_along == 0 && ob_is_inside) {")
    with code.indent():
        code.splice(kernel.stores_of_row)
    code.writeline("}")
