# SPDX-License-Identifier: BSD-3-Clause
"""An item computes one element, or reduces one row in a loop, with several independent accumulators."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]

from torch_outboard.codegen.mapping.mapping import Body, Mapping

__all__ = ["Item"]


class Item(Mapping):
    """One element or row per item."""

    def __init__(self, kernel: Body, is_parallel: bool, items: int) -> None:
        super().__init__(kernel, is_parallel)
        self.items = items

    def launch(self) -> tuple[int, int]:
        return self.items, self.items

    def head(self, total: str) -> list[str]:
        return [f"const ob_i64 ob_number = {self.kernel.dialect.item};", f"if (ob_number >= {total}) return;"]

    def lanes(self, loops: list[Any]) -> int:
        """Return how many lanes share a row: one if the order matters or rows are short."""
        kernel, most = self.kernel, self.kernel.dialect.lanes
        if kernel.is_sequential or len(loops) > 1 or not kernel.before:
            return 1
        size = loops[0].numel
        return 1 if isinstance(size, sympy.Integer) and size < most else most

    def write_loops(self, loops: list[Any], lanes: int) -> None:
        if lanes == 1:
            super().write_loops(loops, lanes)
            return
        (tree,) = loops
        kernel, body = self.kernel, self.kernel.body
        index, number, prefix = kernel.index_dtype, f"{tree.prefix}numel", tree.prefix
        whole = kernel.fresh_name(f"{prefix}whole")
        body.writeline(f"const {index} {whole} = {number} - {number} % {lanes};")
        body.writeline(f"for ({index} {prefix}base = 0; {prefix}base < {whole}; {prefix}base += {lanes})")
        body.writelines(self.vectors(1))
        body.writeline(f"  for (int lane = 0; lane < {lanes}; ++lane) {{")
        self.write_loop_body(f"const {index} {prefix}index = {prefix}base + lane, turn = {prefix}base / {lanes};")
        body.writeline("  }")
        if not isinstance(tree.numel, sympy.Integer) or tree.numel % lanes != 0:
            body.writeline(f"for ({index} {prefix}index = {whole}; {prefix}index < {number}; ++{prefix}index) {{")
            self.write_loop_body(f"const {index} lane = {prefix}index - {whole}, turn = {whole} / {lanes};")
            body.writeline("}")
