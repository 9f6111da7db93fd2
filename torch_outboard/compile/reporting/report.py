# SPDX-License-Identifier: BSD-3-Clause
"""The report of torch.compile's work: regions, graph breaks, kernels, operators without a kernel, and times."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from torch_outboard._coverage import Coverage, coverage
from torch_outboard.compile.reporting.build import Builder
from torch_outboard.compile.reporting.data import Graph, Region
from torch_outboard.compile.reporting.trace import Listener

__all__ = ["CompileReport", "report"]


class CompileReport:
    """The compiled regions, in order. Prints as text, also with rich. Filled at the end of the `with` block."""

    def __init__(self) -> None:
        self.regions: list[Region] = []

    @property
    def graphs(self) -> list[Graph]:
        return [graph for region in self.regions for graph in region.graphs]

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as data for JSON."""
        return {
            "summary": self.summary(),
            "regions": [
                {**dataclasses.asdict(region), "total_seconds": region.total_seconds} for region in self.regions
            ],
        }

    def summary(self) -> str:
        """Return the report's numbers in one sentence."""
        graphs = self.graphs
        cached = sum(graph.state == "from the cache" for graph in graphs)
        kernels = sum(len(graph.kernels) for graph in graphs)
        breaks = sum(len(region.breaks) for region in self.regions)
        seconds = sum(region.total_seconds for region in self.regions)
        return (
            f"{_count(len(self.regions), 'region')}, {_count(len(graphs), 'graph')} ({cached} from the cache), "
            f"{_count(kernels, 'kernel')}, {_count(breaks, 'graph break')}, {seconds:.2f} s"
        )

    def __rich__(self) -> Any:
        from torch_outboard.compile.reporting.text import render  # imports rich

        return render(self.summary(), self.regions)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip()

    def __repr__(self) -> str:
        return f"<CompileReport: {self.summary()}>"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextlib.contextmanager
def report() -> Iterator[CompileReport]:
    """Report the work of torch.compile within a `with` block, in all threads; exceptions of the block propagate.

    The report is filled at the end of the block. It omits code that was compiled before the block, even if the block
    runs it. Within the block, compilation takes longer, because torch writes graphs as text. This function imports
    neither Dynamo nor Inductor.
    """
    result = CompileReport()
    listener = Listener()
    before = coverage()
    listener.listen()
    try:
        yield result
    finally:
        listener.stop()
        builder = Builder()
        for record in listener.records:
            builder.add(record)
        result.regions = builder.finish(_ran(before, coverage()))


def _ran(before: Coverage, after: Coverage) -> dict[str, list[str]]:
    """Return the providers that ran each operator between two snapshots of the counters."""
    calls = {(row.op, row.provider): row.calls for row in before}
    providers: dict[str, list[str]] = {}
    for row in after:
        # A count may also have decreased, if the counters were reset in between.
        if row.calls != calls.get((row.op, row.provider), 0):
            providers.setdefault(row.op, []).append(row.provider)
    return providers
