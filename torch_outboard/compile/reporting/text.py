# SPDX-License-Identifier: BSD-3-Clause
"""The compile report as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torch_outboard.compile.reporting.data import Graph, Region

__all__ = ["PHASE_NAMES", "render"]

PHASE_NAMES = {
    "dynamo": "Dynamo",
    "aot": "AOT",
    "lowering": "lowering",
    "code": "code generation",
    "kernels": "kernels",
}


def render(summary: str, regions: Sequence[Region]) -> Group:
    parts: list[Any] = [Text(f"Compiled: {summary}", style="bold")]
    for region in regions:
        parts.append(Text(""))
        parts += _region(region)
    return Group(*parts)


def _region(region: Region) -> Iterator[Any]:
    place = f"{region.file}:{region.line}" if region.file else "unknown place"
    operators = "1 operator" if region.operators == 1 else f"{region.operators} operators"
    yield Text(f"{region.compile_id} {region.function or '(unnamed)'}, {place}: {operators}", style="bold")
    phases = ", ".join(f"{PHASE_NAMES[phase]} {seconds:.2f}" for phase, seconds in region.seconds.items())
    yield _indented(f"{region.total_seconds:.2f} s: {phases}")
    for reason in region.recompile_reasons:
        yield _indented(f"recompiled: {reason}")
    for graph_break in region.breaks:
        at = f" at {graph_break.file}:{graph_break.line}" if graph_break.file else ""
        yield _indented(f"graph break{at}: {graph_break.reason}")
    if region.error:
        yield _indented(f"failed: {region.error}")
    for graph in region.graphs:
        capture = f", {graph.capture}" if graph.capture else ""
        yield _indented(f"{graph.kind} graph, {graph.state}{capture}" + (f": {graph.note}" if graph.note else ""))
        if graph.kernels or graph.externs:
            yield Padding(_table(graph), (0, 0, 0, 4))


def _table(graph: Graph) -> Table:
    table = Table("kernel or operator", "by", "fuses", box=None, pad_edge=False)
    table.add_column("lines", justify="right")
    table.add_column("calls", justify="right")
    for kernel in graph.kernels:
        table.add_row(*_cells(kernel.name, kernel.language, ", ".join(kernel.operators), kernel.lines, kernel.calls))
    for extern in graph.externs:
        table.add_row(*_cells(extern.name, extern.provider or "not seen", "", "", extern.calls))
    return table


def _cells(*values: object) -> list[Text]:
    return [Text(str(value), overflow="fold") for value in values]


def _indented(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 2))
