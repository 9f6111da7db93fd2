# SPDX-License-Identifier: BSD-3-Clause
"""Loops over neighbouring elements on a CPU, which the CPU's compiler vectorizes.

A CPU runs items one after the other. A runtime can vectorize across neighbouring items, but an early return prevents
it, and its vectors are narrower than the CPU's. So an item has a run of neighbouring elements, in a loop marked for
vectorization (OB_VECTORS of a dialect's header). In a reduction, the loop over the lanes is marked, and so is a loop
over a row of independent elements.

If elements have several indices, a run is processed row by row. The divisions of an index then run once a row, and the
loop counts along the row.
"""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_outboard.codegen.mapping import group as groups
from torch_outboard.codegen.mapping.columns import is_cpu

SimtKernel = Any  # kernel.SimtKernel, which imports this

__all__ = ["ELEMENTS", "Run", "is_run", "vectors"]

# Elements of a run: few enough to share small tensors between cores, and enough to pay for a group's launch.
ELEMENTS = 1024
# A shorter row isn't worth its own loop: compilers replace the division by a constant with a multiplication.
_SHORT = 64


def is_run(kernel: SimtKernel) -> bool:
    """Return True if an item has a run of neighbouring elements: on a CPU, if nothing is reduced.

    Kernels that are functions of the host's C++ already loop over their items, so they have no runs.
    """
    return not (kernel.features.is_reduction() or kernel.cooperates or kernel.dialect.runs_on_host) and is_cpu(
        V.graph.get_current_device_or_throw()
    )


def vectors(kernel: SimtKernel, count: int) -> list[str]:
    """Return the line that marks a loop over independent elements for vectorization, if the loop allows it.

    `count` is the number of vectors a turn: one in a loop over lanes, which has no more. A long text gets no such line,
    since it would take long to compile.
    """
    is_short = not groups.is_long(kernel.body.getvalue() + kernel.compute.getvalue())
    is_for_vectors = not kernel.cooperates and is_cpu(V.graph.get_current_device_or_throw())
    return [f"OB_VECTORS({count})"] if is_short and is_for_vectors else []


class Run:
    """The loops of a kernel whose items have runs, and the indices of their elements.

    Create it after the kernel's indices are known and before its parameters are: it may add sizes to the parameters.
    """

    def __init__(self, kernel: SimtKernel, trees: list[Any]) -> None:
        self.kernel = kernel
        self.trees = trees
        self.row = self._row_of_trees() if len(trees) > 1 else self._row_of_entries()
        self._of_row: list[str] = []
        self._of_element: list[str] = []
        if self.row is None:
            self._of_element += kernel.index_lines(trees, "ob_number")
        elif len(trees) > 1:
            self._of_row += kernel.index_lines(trees[1:], "ob_row")
            self._declare(self._of_element, f"{trees[0].prefix}index", "ob_number - ob_first")
        else:
            self._declare(self._of_element, f"{trees[0].prefix}index", "ob_number")
        for entry in kernel.entries_of_run:
            self._write_entry(entry)
        self._size = "" if self.row is None else self._text(self.row)

    @property
    def closing(self) -> list[str]:
        return ["}"] if self.row is None else ["}", "}"]

    def write(self, elements: str) -> list[str]:
        """Return the heads of the loops and the declarations of indices, in the width of the kernel's indices."""
        index, most = self.kernel.index_dtype, f"ob_begin + {ELEMENTS}"
        lines = [
            f"const ob_i64 ob_begin = {self.kernel.dialect.item} * {ELEMENTS};",
            f"if (ob_begin >= {elements}) return;",
            f"const {index} ob_end = ({index})({elements} - ob_begin < {ELEMENTS} ? {elements} : {most});",
        ]
        first, end = f"({index})ob_begin", "ob_end"
        if self.row is not None:
            lines += [
                f"const {index} ob_row_size = {self._size};",
                f"for ({index} ob_row = {first} / ob_row_size; ob_row * ob_row_size < ob_end; ++ob_row) {{",
                f"const {index} ob_first = ob_row * ob_row_size;",
                f"const {index} ob_stop = ob_end - ob_first < ob_row_size ? ob_end : ob_first + ob_row_size;",
                *self._of_row,
            ]
            first, end = f"(ob_first < {first} ? {first} : ob_first)", "ob_stop"
        return [
            *lines,
            *vectors(self.kernel, 2),
            f"for ({index} ob_number = {first}; ob_number < {end}; ++ob_number) {{",
            *self._of_element,
        ]

    def _row_of_trees(self) -> sympy.Expr | None:
        size = self.trees[0].numel
        return size if _is_worth_a_loop(size) else None

    def _row_of_entries(self) -> sympy.Expr | None:
        """Return a size that splits every index into a row's number and a place in the row, or None."""
        entries = [entry for entry in self.kernel.entries_of_run if isinstance(entry.expr, FloorDiv | ModularIndexing)]
        steps = [entry.length if entry.divisor == 1 else entry.divisor for entry in entries]
        for size in sorted(set(steps), key=lambda size: (_hint(size), str(size))):
            if _is_worth_a_loop(size) and all(_times(one, size) is not None for one in steps):
                return size
        return None

    def _write_entry(self, entry: Any) -> None:
        if len(self.trees) > 1 and self.row is not None:
            is_of_element = entry.root is self.trees[0]
            self._declare(self._of_element if is_of_element else self._of_row, entry.name, self.kernel.quotient(entry))
        elif self.row is None or not isinstance(entry.expr, FloorDiv | ModularIndexing):
            self._declare(self._of_element, entry.name, self.kernel.quotient(entry))
        elif entry.divisor == 1:
            rows = _times(entry.length, self.row)
            place = "ob_number - ob_first"
            if rows != 1:
                self._declare(self._of_row, f"{entry.name}_row", f"(ob_row % {self._text(rows)}) * ob_row_size")
                place = f"{entry.name}_row + ({place})"
            self._declare(self._of_element, entry.name, place)
        else:
            rows = _times(entry.divisor, self.row)
            text = "ob_row" if rows == 1 else f"(ob_row / {self._text(rows)})"
            if not isinstance(entry.expr, FloorDiv):
                text = f"{text} % {self._text(entry.length)}"
            self._declare(self._of_row, entry.name, text)

    def _text(self, size: sympy.Expr) -> str:
        return str(self.kernel.narrow(size))

    def _declare(self, lines: list[str], name: str, value: str) -> None:
        index = self.kernel.index_dtype
        lines.append(f"const {index} {name} = ({index})({value});")


def _is_worth_a_loop(size: sympy.Expr) -> bool:
    return not isinstance(size, sympy.Integer) or size >= _SHORT


def _hint(size: sympy.Expr) -> int:
    return int(V.graph.sizevars.optimization_hint(size, fallback=ELEMENTS))


def _times(size: sympy.Expr, part: sympy.Expr) -> sympy.Expr | None:
    """Return how many times a size contains another, if it is known to be a multiple of it; else None."""
    sizes = V.graph.sizevars
    times = sizes.simplify(FloorDiv(size, part))
    return times if sizes.statically_known_equals(times * part, size) else None
