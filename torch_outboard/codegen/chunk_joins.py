# SPDX-License-Identifier: BSD-3-Clause
"""Reductions of each tensor of a list, in two kernels. The first kernel combines the elements of a chunk.

Its items combine their elements in a few accumulators, as row reductions do (reduction.py), and then combine these
accumulators through the group's memory. The second kernel combines the results of a row's chunks in a fixed order, and
stores the row's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES, NARROW, STORAGE_TYPES, SUFFIXES, Dialect
from torch_outboard.codegen.dialects.frame import LocalArray, Parameter
from torch_outboard.codegen.kernel.reduction import joiner, start_of
from torch_outboard.codegen.program import DeviceProgram

__all__ = ["Join", "arrays_of", "loop", "rows_program", "store_of_chunk"]

# Accumulators per item if several items share a chunk. This is also the number of loads in flight.
_LANES_OF_GROUP = 4


@dataclass(frozen=True)
class Join:
    """How the elements of a tensor are combined into one result.

    Attributes
    ----------
    kind : str
        "sum", or "max", for which NaN is the greatest value.
    kept : torch.dtype
        The type in which elements are combined.
    result : torch.dtype
        The type of the row's result.
    has_root : bool
        True if the result is the square root of the combined value.
    needs_elements : bool
        True if a row must have elements.
    """

    kind: str
    kept: torch.dtype
    result: torch.dtype
    has_root: bool = False
    needs_elements: bool = False

    @property
    def type(self) -> str:
        return COMPUTE_TYPES[self.kept]

    def start(self, dialect: Dialect) -> str:
        return dialect.literal(start_of(self.kind, self.kept), self.kept)

    def joined(self, a: str, b: str) -> str:
        """Return the statement that combines b into a."""
        return f"{a} = {joiner(self.kind, self.kept)(a, b)};"

    def text(self) -> str:
        """Return the plan's line for this reduction, as csrc/kernels/chunk_plan.h defines it."""
        dtype, result = (str(dtype).removeprefix("torch.") for dtype in (self.kept, self.result))
        return f"join {dtype} {result} {'some' if self.needs_elements else 'any'}"


def loop(join: Join, dialect: Dialect, body: Sequence[str], index: str, items: int) -> list[str]:
    """Return the lines that combine an item's elements of a chunk. `body` combines one into `ob_parts[lane]`."""
    is_shared = items > 1
    lanes = _LANES_OF_GROUP if is_shared else dialect.lanes
    unroll = [dialect.unroll] * is_shared
    lane_loop = f"for (int lane = 0; lane < {lanes}; ++lane)"
    return [
        f"{join.type} ob_parts[{lanes}];",
        f"{lane_loop} ob_parts[lane] = {join.start(dialect)};",
        f"const {index} ob_whole = xnumel - xnumel % {lanes * items};",
        f"for ({index} ob_base = ob_item; ob_base < ob_whole; ob_base += {lanes * items})",
        *unroll,
        f"  {lane_loop} {{",
        f"    const {index} xindex = ob_base + lane * {items};",
        *(f"    {line}" for line in body),
        "  }",
        *unroll,
        f"{lane_loop} {{",
        f"  const {index} xindex = ob_whole + lane * {items} + ob_item;",
        "  if (xindex < xnumel) {",
        *(f"    {line}" for line in body),
        "  }",
        "}",
        *unroll,
        f"for (int lane = 1; lane < {lanes}; ++lane) {join.joined('ob_parts[0]', 'ob_parts[lane]')}",
        "return ob_parts[0];",
    ]


def _of_group(join: Join, items: int, store: Sequence[str]) -> list[str]:
    """Return the lines that combine the `ob_part` of all items of a group, and store the result from one item.

    The kernel must declare the arrays of `arrays_of`.
    """
    if items == 1:
        return list(store)
    return [
        "ob_shared[OB_ITEM_OF_GROUP] = ob_part;",
        f"for (int span = {items // 2}; span > 0; span /= 2) {{",
        "  OB_BARRIER;",
        "  if (OB_ITEM_OF_GROUP < span) {",
        f"    {join.joined('ob_shared[OB_ITEM_OF_GROUP]', 'ob_shared[OB_ITEM_OF_GROUP + span]')}",
        "  }",
        "}",
        "if (OB_ITEM_OF_GROUP == 0) {",
        "  ob_part = ob_shared[0];",
        *(f"  {line}" for line in store),
        "}",
    ]


def arrays_of(join: Join, items: int) -> list[LocalArray]:
    """Return the memory in which a group's items combine their results."""
    return [LocalArray(join.type, "ob_shared", str(items))] if items > 1 else []


def store_of_chunk(join: Join, items: int) -> list[str]:
    """Return the end of the first kernel: it combines the items' `ob_part` and stores the chunk's result."""
    return _of_group(join, items, [f"ob_joined[ob_number / {items}] = ob_part;"])


def rows_program(join: Join, dialect: Dialect, width: int, first: int, items: int) -> DeviceProgram:
    """Return the second kernel. `first` is the column of a row's first chunk."""
    name = "ob_rows_of_chunks"
    parameters = [
        Parameter("ob_table", "ob_u64", is_pointer=True),
        *(Parameter(name, "ob_i64") for name in ("ob_chunks", "ob_elements", "ob_rows")),
        Parameter("ob_joined", STORAGE_TYPES[join.kept], is_pointer=True, is_alone=True),
        Parameter("ob_results", STORAGE_TYPES[join.result], is_pointer=True, is_written=True),
    ]
    value = f"{dialect.function('sqrt')}(ob_part)" if join.has_root else "ob_part"
    stored = {torch.bool: f"{value} != 0"}.get(join.result, f"({COMPUTE_TYPES[join.result]}){value}")
    if join.result in NARROW:
        stored = f"ob_to_{SUFFIXES[join.result]}({stored})"
    lines = [
        f"const ob_i64 ob_number = {dialect.item};",
        f"const ob_i64 ob_place = ob_number / {items};",
        f"{dialect.pointer('ob_u64', is_written=False)} ob_row = ob_table + ob_chunks + ob_place * {width};",
        f"const ob_i64 ob_first = (ob_i64)ob_row[{first}];",
        f"const ob_i64 ob_end = ob_first + ((ob_i64)ob_row[{width - 1}] + ob_elements - 1) / ob_elements;",
        f"{join.type} ob_part = {join.start(dialect)};",
        f"for (ob_i64 at = ob_first + ob_number % {items}; at < ob_end; at += {items}) "
        f"{join.joined('ob_part', 'ob_joined[at]')}",
        *_of_group(join, items, [f"ob_results[ob_place] = {stored};"]),
    ]
    kernel = dialect.frame(name, parameters, "".join(f"  {line}\n" for line in lines), arrays_of(join, items))
    return DeviceProgram(
        name=name,
        language=dialect.language or dialect.name,
        types=("const void*", "int64_t", "int64_t", "int64_t", "const void*", "void*"),
        code=dialect.source(kernel),
        entry=name,
        grid=("a3",),
        block=(str(items),),
        options=dialect.options,
    )
