# SPDX-License-Identifier: BSD-3-Clause
"""Loops over neighbouring elements on a CPU, which the CPU's compiler vectorizes.

A CPU runs items one after the other. A runtime can vectorize across neighbouring items, but early returns prevent this,
and its vectors are narrower than the CPU's. An item therefore processes a run of neighbouring elements, in a loop
marked for vectorization (OB_VECTORS in a dialect's header). In a reduction, the loop over the lanes is marked, and so
is a loop over a row of independent elements.

If elements have several indices, a run is processed row by row. Divisions of an index then run once per row, and the
loop counts along the row.
"""

from __future__ import annotations

from typing import Any, ClassVar

import sympy  # type: ignore[import-untyped]
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_outboard.codegen.mapping.mapping import Body, Mapping

__all__ = ["ELEMENTS", "Run"]

# Elements per run: few enough to spread small tensors over cores, but enough to outweigh the cost
# of starting a group.
ELEMENTS = 1024
# A shorter row is not worth its own loop: compilers turn the division by a constant into a
# multiplication.
_MIN_LOOP_ROW = 64


class Run(Mapping):
    """A run of neighbouring elements per item, for kernels without reductions."""

    leave: ClassVar[str] = "continue;"

    def __init__(self, kernel: Body, is_parallel: bool) -> None:
        super().__init__(kernel, is_parallel)
        self._entries: list[Any] = []  # the indices of an element that the body uses
        self._trees: list[Any] = []
        self._row: sympy.Expr | None = None  # the size of a row that has its own loop
        self._row_text = ""
        self._of_row: list[str] = []
        self._of_element: list[str] = []

    def launch(self) -> tuple[int, int]:
        return ELEMENTS, 1

    def declare(self, entry: Any) -> None:
        self._entries.append(entry)

    def prepare(self, trees: list[Any]) -> None:
        """Choose the loops. All indices are known, and the kernel's parameters may still gain sizes."""
        self._trees = trees
        self._row = self._row_of_trees() if len(trees) > 1 else self._row_of_entries()
        if self._row is None:
            self._of_element += self.index_lines(trees, "ob_number")
        elif len(trees) > 1:
            self._of_row += self.index_lines(trees[1:], "ob_row")
            self._declare(self._of_element, f"{trees[0].prefix}index", "ob_number - ob_first")
        else:
            self._declare(self._of_element, f"{trees[0].prefix}index", "ob_number")
        for entry in self._entries:
            self._write_entry(entry)
        self._row_text = "" if self._row is None else self.kernel.narrow(self._row)

    def head(self, total: str) -> list[str]:
        """Return the heads of the loops and the declarations of indices, in the width of the kernel's indices."""
        index, most = self.kernel.index_dtype, f"ob_begin + {ELEMENTS}"
        lines = [
            f"const ob_i64 ob_begin = {self.kernel.dialect.item} * {ELEMENTS};",
            f"if (ob_begin >= {total}) return;",
            f"const {index} ob_end = ({index})({total} - ob_begin < {ELEMENTS} ? {total} : {most});",
        ]
        first, end = f"({index})ob_begin", "ob_end"
        if self._row is not None:
            lines += [
                f"const {index} ob_row_size = {self._row_text};",
                f"for ({index} ob_row = {first} / ob_row_size; ob_row * ob_row_size < ob_end; ++ob_row) {{",
                f"const {index} ob_first = ob_row * ob_row_size;",
                f"const {index} ob_stop = ob_end - ob_first < ob_row_size ? ob_end : ob_first + ob_row_size;",
                *self._of_row,
            ]
            first, end = f"(ob_first < {first} ? {first} : ob_first)", "ob_stop"
        return [
            *lines,
            *self.vectors(2),
            f"for ({index} ob_number = {first}; ob_number < {end}; ++ob_number) {{",
            *self._of_element,
        ]

    def indices(self, trees: list[Any]) -> list[str]:
        return []  # the head declares them, each in its loop

    def write_end(self, code: IndentedBuffer) -> None:
        code.writelines(["}"] if self._row is None else ["}", "}"])

    def _row_of_trees(self) -> sympy.Expr | None:
        size = self._trees[0].numel
        return size if _is_worth_a_loop(size) else None

    def _row_of_entries(self) -> sympy.Expr | None:
        """Return a size that splits every index into a row number and a position in the row, or None."""
        entries = [entry for entry in self._entries if isinstance(entry.expr, FloorDiv | ModularIndexing)]
        steps = [entry.length if entry.divisor == 1 else entry.divisor for entry in entries]
        for size in sorted(set(steps), key=lambda size: (_hint(size), str(size))):
            if _is_worth_a_loop(size) and all(_times(step, size) is not None for step in steps):
                return size
        return None

    def _write_entry(self, entry: Any) -> None:
        if len(self._trees) > 1 and self._row is not None:
            is_of_element = entry.root is self._trees[0]
            self._declare(self._of_element if is_of_element else self._of_row, entry.name, self.kernel.quotient(entry))
        elif self._row is None or not isinstance(entry.expr, FloorDiv | ModularIndexing):
            self._declare(self._of_element, entry.name, self.kernel.quotient(entry))
        elif entry.divisor == 1:
            rows = _times(entry.length, self._row)
            place = "ob_number - ob_first"
            if rows != 1:
                self._declare(self._of_row, f"{entry.name}_row", f"(ob_row % {self.kernel.narrow(rows)}) * ob_row_size")
                place = f"{entry.name}_row + ({place})"
            self._declare(self._of_element, entry.name, place)
        else:
            rows = _times(entry.divisor, self._row)
            text = "ob_row" if rows == 1 else f"(ob_row / {self.kernel.narrow(rows)})"
            if not isinstance(entry.expr, FloorDiv):
                text = f"{text} % {self.kernel.narrow(entry.length)}"
            self._declare(self._of_row, entry.name, text)

    def _declare(self, lines: list[str], name: str, value: str) -> None:
        index = self.kernel.index_dtype
        lines.append(f"const {index} {name} = ({index})({value});")


def _is_worth_a_loop(size: sympy.Expr) -> bool:
    return not isinstance(size, sympy.Integer) or size >= _MIN_LOOP_ROW


def _hint(size: sympy.Expr) -> int:
    return int(V.graph.sizevars.optimization_hint(size, fallback=ELEMENTS))


def _times(size: sympy.Expr, part: sympy.Expr) -> sympy.Expr | None:
    """Return how often `part` fits in `size`, if `size` is known to be a multiple of `part`, else None."""
    sizes = V.graph.sizevars
    times = sizes.simplify(FloorDiv(size, part))
    return times if sizes.statically_known_equals(times * part, size) else None
