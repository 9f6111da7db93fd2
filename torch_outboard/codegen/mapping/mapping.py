# SPDX-License-Identifier: BSD-3-Clause
"""The interface of mappings, and the interface of kernels that mappings use.

A kernel owns one mapping. Inductor's scheduling drives the kernel, which collects statements in buffers. The mapping
decides where these buffers go: which loops surround them, how an item finds its elements, where accumulators are
combined and results stored, and how many items a launch has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch._inductor.codegen.common import DeferredLine
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.mapping.machine import is_cpu, is_long

__all__ = ["Body", "Element", "LateStores", "Mapping"]


class Element(NamedTuple):
    """An element of a buffer and its value, as texts. The value's type is `kind`; a helper, if named, converts it."""

    pointer: str
    place: str
    value: str
    kind: str
    helper: str

    def store(self) -> str:
        value = f"{self.helper}({self.value})" if self.helper else self.value
        return f"{self.pointer}[{self.place}] = {value};"


class Body(Protocol):
    """The parts of a kernel that its mapping uses.

    Attributes
    ----------
    body : IndentedBuffer
        The kernel's text so far.
    before, indexing_code, compute, after : IndentedBuffer
        The statements collected for the current part: before its loop over a row, in the loop, and after it.
    lanes_name : str
        The name of the constant with the number of lanes in this part.
    is_sequential : bool
        True if the loop of this part must run in order, in one lane.
    """

    dialect: ClassVar[Dialect]
    features: Any
    range_trees: list[Any]
    body: IndentedBuffer
    before: IndentedBuffer
    indexing_code: IndentedBuffer
    compute: IndentedBuffer
    after: IndentedBuffer
    lanes_name: str
    is_sequential: bool

    @property
    def index_dtype(self) -> str:
        """The type of the kernel's indices."""

    def fresh_name(self, name: str) -> str:
        """Return a name that the kernel has not used."""

    def narrow(self, size: Any) -> str:
        """Return a size in the type of the kernel's indices."""

    def quotient(self, entry: Any) -> str:
        """Return an index that is part of its tree's index."""

    def forget(self, loops: list[Any]) -> None:
        """Drop the values computed in loops, except the loops' results."""

    def keep_stored(self) -> None:
        """Keep the stored variables past the next loop, which then does not read them from memory."""


class LateStores:
    """Stores of several elements after the loads of all of them, for a language without `restrict`.

    In such a language, no load may move ahead of a store. A first loop over the elements therefore keeps their places
    and values in arrays, and a second loop runs `lines`. The variable of both loops is `part`.
    """

    def __init__(self, kernel: Body, part: str) -> None:
        self.lines = IndentedBuffer()
        self._kernel, self._part = kernel, part
        self._arrays: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._arrays)

    def add(self, name: str, element: Element) -> None:
        """Keep an element of a buffer in arrays, and store it in the second loop."""
        kernel, index = self._kernel, self._kernel.index_dtype
        place, value = (kernel.fresh_name(f"ob_{array}") for array in ("place", "value"))
        self._arrays += [f"{index} {place}", f"{element.kind} {value}"]
        late = element._replace(place=f"{place}[{self._part}]", value=f"{value}[{self._part}]")
        keep = f"{late.place} = ({index})({element.place}); {late.value} = {element.value};"
        kernel.compute.writeline(DeferredLine(name, keep))
        self.lines.writeline(DeferredLine(name, late.store()))

    def declarations(self, count: int) -> list[str]:
        """Return the declarations of the arrays, for `count` elements."""
        return [f"{array}[{count}];" for array in self._arrays]


class Mapping(ABC):
    """The distribution of a kernel's elements over items and groups of items.

    Attributes
    ----------
    is_parallel : bool
        True if neighbouring items run at the same time, as on GPUs.
    is_guarded : bool
        True if an item without its own element continues, with `ob_is_inside` false, instead of returning early.
    leave : str
        The statement with which an item skips an element that has no valid index.
    lane : str
        The lane of an accumulator that holds a row's result.
    """

    is_guarded: ClassVar[bool] = False
    leave: ClassVar[str] = "return;"
    lane: ClassVar[str] = "0"

    def __init__(self, kernel: Body, is_parallel: bool) -> None:
        self.kernel = kernel
        self.is_parallel = is_parallel

    # The launch.

    @abstractmethod
    def launch(self) -> tuple[int, int]:
        """Return how many of the kernel's elements or rows a group processes, and how many items it has."""

    def count(self, tree: Any, size: str) -> str:
        """Return the number of elements or rows along a dimension of this size, as an expression."""
        return size

    def count_formula(self, tree: Any, size: str) -> str:
        """Return the same number in the postfix form of a launch's formulas."""
        return size

    # Indices.

    def declare(self, entry: Any) -> None:
        """Write the declaration of an index that the body uses."""
        buffer = self.kernel.indexing_code if entry.root.is_loop else self.kernel.body
        buffer.writeline(self.declaration(entry))

    def declaration(self, entry: Any) -> str:
        return f"const {self.kernel.index_dtype} {entry.name} = {self.kernel.quotient(entry)};"

    def prepare(self, trees: list[Any]) -> None:  # noqa: B027  most mappings need nothing
        """Prepare the head before the kernel's parameters are known; `trees` are the dimensions, the densest first."""

    @abstractmethod
    def head(self, total: str) -> list[str]:
        """Return the lines with which an item finds the number of its element, `ob_number`, among `total`."""

    def indices(self, trees: list[Any]) -> list[str]:
        """Return the declarations of an item's indices, after the head."""
        return self.index_lines(trees, "ob_number")

    def index_lines(self, trees: list[Any], number: str) -> list[str]:
        """Return the declarations of an item's indices, one in each dimension, computed from the item's number."""
        lines: list[str] = []
        for tree in trees:
            count = self.count(tree, f"{tree.prefix}numel")
            here = number if tree is trees[-1] else f"({number} % {count})"
            lines += self.index_of(tree, here)
            number = f"({number} / {count})"
        return lines

    def index_of(self, tree: Any, number: str) -> list[str]:
        """Return the declaration of an item's index in a dimension."""
        return [f"const {self.kernel.index_dtype} {tree.prefix}index = ({self.kernel.index_dtype}){number};"]

    def arrays(self) -> list[LocalArray]:
        """Return the memory that the items of a group share."""
        return []

    def write_end(self, code: IndentedBuffer) -> None:  # noqa: B027  most mappings need nothing
        """Write the end of the kernel: stores that had to wait, and closing braces."""

    # The body.

    def store(self, name: str, line: str, *, is_of_row: bool) -> None:
        """Write a store to a buffer; `is_of_row` is true if the value has one element per row."""
        self.kernel.compute.writeline(DeferredLine(name, line))

    def store_element(self, name: str, element: Element, *, is_of_row: bool) -> None:
        """Write the store of an element; `is_of_row` as in `store`."""
        self.store(name, element.store(), is_of_row=is_of_row)

    def write_part(self, loops: list[Any]) -> None:
        """Write the collected statements: a loop over rows and the code after it, or no loop."""
        kernel = self.kernel
        if not loops:
            for part in (kernel.before, kernel.indexing_code, kernel.compute, kernel.after):
                kernel.body.splice(part)
            return
        lanes = self.lanes(loops)
        # Deferred lines (stores that Inductor may still remove) cannot be changed later, so they
        # refer to the number of lanes by name.
        kernel.body.writeline(kernel.dialect.constant(kernel.lanes_name, lanes))
        kernel.body.splice(kernel.before)
        self.write_loops(loops, lanes)
        kernel.forget(loops)
        kernel.body.splice(kernel.after)

    def lanes(self, loops: list[Any]) -> int:
        """Return how many lanes share a row."""
        return 1

    def write_loops(self, loops: list[Any], lanes: int) -> None:
        """Write the loops over an item's elements of its row, in one lane."""
        if len(loops) == 1 and not self.kernel.before and not self.kernel.is_sequential:
            self.kernel.body.writelines(self.vectors(2))
        turn = self.open_loops(loops)
        first = f"const {self.kernel.index_dtype} lane = 0, turn = {turn};"
        self.write_loop_body(first if self.kernel.before else "")
        self.kernel.body.writeline("}" * len(loops))

    def open_loops(self, loops: list[Any]) -> str:
        """Write the heads of loops over a row, one element per turn, and return the number of the turn."""
        index = self.kernel.index_dtype
        for tree in loops:
            name = tree.prefix + "index"
            self.kernel.body.writeline(f"for ({index} {name} = 0; {name} < {tree.prefix}numel; ++{name}) {{")
        turn: str = loops[0].prefix + "index"
        for tree in loops[1:]:
            turn = f"({turn}) * {tree.prefix}numel + {tree.prefix}index"
        return turn

    def write_loop_body(self, first: str) -> None:
        kernel = self.kernel
        with kernel.body.indent(2):
            if first:
                kernel.body.writeline(first)
            kernel.body.splice(kernel.indexing_code)
            kernel.body.splice(kernel.compute)

    def join_lanes(self, arrays: Iterable[tuple[str, torch.dtype]], lines: Callable[[str, str], list[str]]) -> None:
        """Combine the accumulators' lanes after the loop. `lines` returns the statements that combine b into a."""
        after = self.kernel.after
        after.writeline(f"for (int span = {self.kernel.lanes_name} / 2; span > 0; span /= 2)")
        after.writeline("  for (int lane = 0; lane < span; ++lane) {")
        after.writelines(["    " + line for line in lines("lane", "lane + span")])
        after.writeline("  }")

    def keep(self, variable: str, kind: str) -> None:  # noqa: B027  most mappings need nothing
        """Keep a reduction's result, a variable of the code after the loop, for later parts of the kernel."""

    def vectors(self, count: int) -> list[str]:
        """Return the line that marks a loop over independent elements for vectorization, if the loop allows it.

        `count` is the number of vectors per turn: one in a loop over lanes. A long text gets no such line, because it
        would take too long to compile.
        """
        kernel = self.kernel
        is_short = not is_long(kernel.body.getvalue() + kernel.compute.getvalue())
        is_for_vectors = not self.is_parallel and is_cpu(V.graph.get_current_device_or_throw())
        return [f"OB_VECTORS({count})"] if is_short and is_for_vectors else []
