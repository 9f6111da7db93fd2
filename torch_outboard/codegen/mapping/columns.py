# SPDX-License-Identifier: BSD-3-Clause
"""Column reductions on a CPU: an item reduces several neighbouring columns, so that it reads whole cache lines.

On a GPU, neighbouring items run in parallel and read a cache line together. A CPU runs them one after the other: with a
single column, each item would fetch a cache line per element. Each part of the kernel's body is therefore a loop over
the item's columns, inside the loop over the rows. Values that one part computes and a later part reads are kept in
arrays with one element per column, like accumulators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch._inductor.utils import IndentedBuffer

from torch_outboard.codegen.mapping.item import Item
from torch_outboard.codegen.mapping.mapping import Body

__all__ = ["Columns", "reads_columns"]


def reads_columns(node: Any) -> bool:
    """Return True if the memory that a reduction reads is contiguous along the dimensions that are not reduced."""
    body = node._body
    if not body.iter_vars or not body.reduce_vars:
        return False
    reads = [read for read in body.get_read_exprs() if read.free_symbols & set(body.reduce_vars)]
    is_along_rows = any(read.coeff(symbol) == 1 for read in reads for symbol in body.reduce_vars)
    return not is_along_rows and any(read.coeff(body.iter_vars[-1]) == 1 for read in reads)


class Columns(Item):
    """Several neighbouring columns per item."""

    lane: ClassVar[str] = "lane"

    def __init__(self, kernel: Body, is_parallel: bool, items: int, columns: int) -> None:
        super().__init__(kernel, is_parallel, max(items // columns, 1))
        self.columns = columns
        self._of_column: list[str] = []  # declarations for each column
        self._declarations: list[str] = []  # declarations for each column, for the code after the loop

    def count(self, tree: Any, size: str) -> str:
        return f"(({size} + {self.columns - 1}) / {self.columns})" if tree.prefix == "x" else size

    def count_formula(self, tree: Any, size: str) -> str:
        return f"{size} {self.columns} ceildiv" if tree.prefix == "x" else size

    def declare(self, entry: Any) -> None:
        if entry.root.is_loop:
            super().declare(entry)
        else:
            self._of_column.append(self.declaration(entry))

    def index_of(self, tree: Any, number: str) -> list[str]:
        """Return the declaration of an item's index, or of its first column and number of columns."""
        if tree.prefix != "x":
            return super().index_of(tree, number)
        index, count = self.kernel.index_dtype, self.columns
        return [
            f"const {index} ob_first = ({index}){number} * {count};",
            f"const int ob_columns = xnumel - ob_first < {count} ? (int)(xnumel - ob_first) : {count};",
        ]

    def write_part(self, loops: list[Any]) -> None:
        kernel, body = self.kernel, self.kernel.body
        if kernel.before:
            body.writeline(kernel.dialect.constant(kernel.lanes_name, self.columns))
            body.splice(kernel.before)
        if loops:
            turn = f"const {kernel.index_dtype} turn = {self.open_loops(loops)};"
            self._write_columns([turn], kernel.indexing_code, kernel.compute)
            body.writeline("}" * len(loops))
            if kernel.after:
                self._write_columns([], kernel.after)
        else:
            self._write_columns([], kernel.indexing_code, kernel.compute, kernel.after)
        kernel.forget(loops)
        self._of_column += self._declarations
        self._declarations.clear()

    def _write_columns(self, first: list[str], *parts: IndentedBuffer) -> None:
        body = self.kernel.body
        body.writeline("for (int lane = 0; lane < ob_columns; ++lane) {")
        with body.indent(2):
            body.writeline(f"const {self.kernel.index_dtype} xindex = ob_first + lane;")
            body.writelines([*first, *self._of_column])
            for part in parts:
                body.splice(part)
        body.writeline("}")

    def join_lanes(self, arrays: Iterable[tuple[str, torch.dtype]], lines: Callable[[str, str], list[str]]) -> None:
        """Write nothing: each lane has its own row."""

    def keep(self, variable: str, kind: str) -> None:
        self.kernel.before.writeline(f"{kind} {variable}_of[{self.kernel.lanes_name}];")
        self.kernel.after.writeline(f"{variable}_of[lane] = {variable};")
        self._declarations.append(f"const {kind} {variable} = {variable}_of[lane];")
