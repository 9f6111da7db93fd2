# SPDX-License-Identifier: BSD-3-Clause
"""Reductions by groups of items, for devices that run many items in parallel, such as GPUs.

The items of a group share rows. If a row has `along` items, each item accumulates every along-th element of the row in
a few accumulators. The accumulators are combined within the item, and then through the group's memory, in a fixed
order. Afterwards all items of the row have the result and continue with the row together. A value with one element per
row is stored by a single item, at the end of the kernel, after all items have read the memory that the store
overwrites. A group processes several rows at once. If columns are reduced, these rows are neighbouring columns, so that
items with neighbouring numbers read neighbouring memory.

Every item of a group must reach each barrier, so no item returns early: an item without a row gets an empty row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch._inductor.codegen.common import DeferredLine
from torch._inductor.utils import IndentedBuffer

from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES, SUFFIXES
from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.mapping.machine import is_long
from torch_outboard.codegen.mapping.mapping import Body, Element, LateStores, Mapping

__all__ = ["Group", "Shape"]


@dataclass(frozen=True)
class Shape:
    """The distribution of rows in a group: `across` rows, each shared by `along` items.

    If `is_across_first` is true, items with neighbouring numbers process neighbouring rows. Otherwise they share a row.
    """

    across: int
    along: int
    is_across_first: bool
    lanes: int

    @property
    def items(self) -> int:
        """The number of items in a group."""
        return self.across * self.along

    @property
    def step(self) -> int:
        """The distance between consecutive items of a row."""
        return self.across if self.is_across_first else 1

    @property
    def elements(self) -> int:
        """The number of elements of a row per turn of the loop."""
        return self.along * self.lanes


class Group(Mapping):
    """Rows that the items of a group share."""

    is_guarded: ClassVar[bool] = True

    def __init__(self, kernel: Body, is_parallel: bool, shape: Shape) -> None:
        super().__init__(kernel, is_parallel)
        self.shape = shape
        self._shared: dict[str, torch.dtype] = {}  # memory of the group
        self._stores = IndentedBuffer()  # stores by a single item per row
        self._late = LateStores(kernel, "lane")  # late stores of the part that is written next

    def launch(self) -> tuple[int, int]:
        return self.shape.across, self.shape.items

    def head(self, total: str) -> list[str]:
        """Return the declarations of an item's position in the group and of its row's number."""
        shape = self.shape
        row, along = f"ob_item / {shape.along}", f"ob_item % {shape.along}"
        if shape.is_across_first:
            row, along = f"ob_item % {shape.across}", f"ob_item / {shape.across}"
        (tree,) = (range_tree for range_tree in self.kernel.range_trees if range_tree.is_reduction)
        return [
            f"const int ob_item = {'OB_ITEM_OF_SUBGROUPS' if self._neighbours > 1 else 'OB_ITEM_OF_GROUP'};",
            f"const int ob_row = {row}, ob_along = {along};",
            f"const ob_i64 ob_rows = {total};",
            f"const ob_i64 ob_wanted = OB_GROUP_NUMBER * {shape.across} + ob_row;",
            "const bool ob_is_inside = ob_wanted < ob_rows;",
            "const ob_i64 ob_number = ob_is_inside ? ob_wanted : ob_rows - 1;",
            f"const {self.kernel.index_dtype} {tree.prefix}end = ob_is_inside ? {tree.prefix}numel : 0;",
        ]

    def arrays(self) -> list[LocalArray]:
        return [LocalArray(COMPUTE_TYPES[dtype], name, str(self.shape.items)) for name, dtype in self._shared.items()]

    def store(self, name: str, line: str, *, is_of_row: bool) -> None:
        if is_of_row:
            self._stores.writeline(DeferredLine(name, line))
        else:
            super().store(name, line, is_of_row=is_of_row)

    def store_element(self, name: str, element: Element, *, is_of_row: bool) -> None:
        """Write a store, after the loads of a turn's lanes if the language has no `restrict`, and the loop is short.

        An in-place kernel reads each element in the lane that overwrites it, so no lane needs another lane's store.
        """
        if is_of_row or self.kernel.dialect.has_restrict or is_long(self.kernel.compute.getvalue()):
            super().store_element(name, element, is_of_row=is_of_row)
        else:
            self._late.add(name, element)

    def write_end(self, code: IndentedBuffer) -> None:
        """Write the stores of values with one element per row."""
        code.writeline("OB_BARRIER;")
        code.writeline("if (ob_along == 0 && ob_is_inside) {")
        with code.indent():
            code.splice(self._stores)
        code.writeline("}")

    def write_part(self, loops: list[Any]) -> None:
        super().write_part(loops)
        if not loops:
            # A row's stores run at the end of the kernel, so later loops must read the variable
            # instead of memory.
            self.kernel.keep_stored()

    def lanes(self, loops: list[Any]) -> int:
        return self.shape.lanes

    def write_loops(self, loops: list[Any], lanes: int) -> None:
        """Write the loops over an item's elements of its row: whole turns of all lanes, then the rest.

        The loop counters are unsigned, because a step of the group may exceed the greatest index.
        """
        shape, body, index, prefix = self.shape, self.kernel.body, self.kernel.index_dtype, loops[0].prefix
        count, late = index.replace("ob_i", "ob_u"), self._late
        if not self.kernel.before and not late:
            head = f"{count} {prefix}at = ob_along; {prefix}at < ({count}){prefix}end; {prefix}at += {shape.along}"
            body.writeline(f"for ({head}) {{")
            body.writeline(f"  const {index} {prefix}index = ({index}){prefix}at;")
            self.write_loop_body("")
            body.writeline("}")
            return
        whole = self.kernel.fresh_name(f"{prefix}whole")
        body.writelines(late.declarations(lanes))
        body.writeline(f"const {index} {whole} = {prefix}end - {prefix}end % {shape.elements};")
        head = f"{count} {prefix}base = ob_along; {prefix}base < ({count}){whole}; {prefix}base += {shape.elements}"
        body.writeline(f"for ({head}){' {' if late else ''}")
        with self._write_lanes("  "):
            base, turn = f"({index}){prefix}base", f"({index})({prefix}base / {shape.elements})"
            self.write_loop_body(f"const {index} {prefix}index = {base} + lane * {shape.along}, turn = {turn};")
        if late:
            with self._write_lanes("  "), body.indent(2):
                body.splice(late.lines)
            body.writeline("}")
        with self._write_tail(prefix, whole):
            turn = f"{whole} / {shape.elements}"
            self.write_loop_body(f"const {index} {prefix}index = ({index}){prefix}at, turn = {turn};")
        if late:
            with self._write_tail(prefix, whole), body.indent(2):
                body.splice(late.lines)
            self._late = LateStores(self.kernel, "lane")

    @contextmanager
    def _write_lanes(self, space: str = "") -> Iterator[None]:
        """Write a loop over the lanes. Their number is a constant; unrolling keeps accumulators in registers."""
        body = self.kernel.body
        body.writeline(self.kernel.dialect.unroll)
        body.writeline(f"{space}for (int lane = 0; lane < {self.shape.lanes}; ++lane) {{")
        yield
        body.writeline(f"{space}}}")

    @contextmanager
    def _write_tail(self, prefix: str, whole: str) -> Iterator[None]:
        """Write a loop over the lanes that have an element after the last whole turn."""
        body, count = self.kernel.body, self.kernel.index_dtype.replace("ob_i", "ob_u")
        with self._write_lanes():
            body.writeline(f"  const {count} {prefix}at = ({count}){whole} + lane * {self.shape.along} + ob_along;")
            body.writeline(f"  if ({prefix}at < ({count}){prefix}end) {{")
            yield
            body.writeline("  }")

    def join_lanes(self, arrays: Iterable[tuple[str, torch.dtype]], lines: Callable[[str, str], list[str]]) -> None:
        """Combine the accumulators after the loop. Each item then has the row's result in the first lane.

        Items of a subgroup first combine their accumulators into the accumulators of the subgroup's first item. A few
        items then combine the accumulators of all subgroups or, without subgroups, of all items. At the end, every item
        combines the results of these few.
        """
        shape, after, arrays = self.shape, self.kernel.after, list(arrays)
        lanes = shape.lanes
        while lanes > 1:
            lanes //= 2
            for lane in range(lanes):
                after.writelines(lines(str(lane), str(lane + lanes)))
        width = distance = self._neighbours
        while distance > 1:
            distance //= 2
            after.writeline(" ".join(f"{name}[1] = OB_OF_ITEM({name}[0], ob_item + {distance});" for name, _ in arrays))
            after.writelines(lines("0", "1"))
        if width == shape.along:
            after.writeline(" ".join(f"{name}[0] = OB_OF_ITEM({name}[0], ob_item - ob_along);" for name, _ in arrays))
            return
        shared = [(name, self._memory(dtype, number)) for number, (name, dtype) in enumerate(arrays)]
        parts, step = shape.along // width, shape.step * width
        few = parts if parts <= 16 else 1 << (parts.bit_length() // 2)
        write = " ".join(f"{place}[ob_item] = {name}[0];" for name, place in shared)
        is_first = "" if width == 1 else f"ob_along % {width} == 0"

        def join_from(place: str) -> None:
            after.writeline("  " + " ".join(f"{name}[1] = {memory}[{place}];" for name, memory in shared))
            after.writelines(["  " + line for line in lines("0", "1")])

        after.writelines(["OB_BARRIER;", f"if ({is_first}) {{ {write} }}" if is_first else write, "OB_BARRIER;"])
        if few < parts:
            after.writeline(f"if (ob_along < {few * width}{is_first and f' && {is_first}'}) {{")
            after.writeline(f"  for (int other = {few}; other < {parts}; other += {few}) {{")
            join_from(f"ob_item + other * {step}")
            after.writelines(["  }", f"  {write}", "}", "OB_BARRIER;"])
        first = f"ob_item - ob_along * {shape.step}"
        after.writeline(" ".join(f"{name}[0] = {place}[{first}];" for name, place in shared))
        after.writeline(f"for (int other = 1; other < {few}; ++other) {{")
        join_from(f"{first} + other * {step}")
        after.writeline("}")

    @property
    def _neighbours(self) -> int:
        """The number of a row's items that share a subgroup; 1 without subgroups."""
        shape, subgroup = self.shape, self.kernel.dialect.subgroup
        is_power = shape.along & (shape.along - 1) == 0
        if subgroup == 0 or shape.is_across_first or not is_power or shape.items % subgroup != 0:
            return 1
        return min(subgroup, shape.along)

    def _memory(self, dtype: torch.dtype, number: int) -> str:
        """Return the name of the group memory with one element per item; each type and number has its own."""
        name = f"ob_shared_{SUFFIXES[dtype]}_{number}"
        self._shared[name] = dtype
        return name
