# SPDX-License-Identifier: BSD-3-Clause
"""What torch.compile made of a program: regions, graph breaks, kernels, operators without a kernel, and times."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch_outboard._coverage import Coverage, coverage
from torch_outboard.compile import trace
from torch_outboard.compile.generated import Extern, Kernel, read_code

__all__ = ["CompileReport", "Graph", "GraphBreak", "Region", "report"]

_CACHE_STATES = {
    "fx_graph_cache_miss": "compiled",
    "fx_graph_cache_bypass": "compiled",
    "fx_graph_cache_hit": "from the cache",
    "fx_graph_bundled_cache_hit": "from the cache",
}


@dataclass
class GraphBreak:
    """Where Dynamo had to end a graph, and why; `file` is empty where torch does not say."""

    reason: str
    file: str
    line: int | None


@dataclass
class Graph:
    """What Inductor generated for one graph.

    Attributes
    ----------
    kind : str
        "inference", "forward" or "backward".
    state : str
        "compiled", or "from the cache": then no kernel was generated or compiled, and those listed are the cached ones.
    note : str
        Why the generated code could not be read; else empty.
    capture : str
        With mode="reduce-overhead": "captured", or why it is not; else empty.
    """

    kind: str
    state: str = "compiled"
    kernels: list[Kernel] = field(default_factory=list)
    externs: list[Extern] = field(default_factory=list)
    note: str = ""
    capture: str = ""


@dataclass
class Region:
    """One compilation of one Python frame.

    Attributes
    ----------
    compile_id : str
        As in torch's logs: the frame's number, and how often it was compiled before.
    function, file, line
        The frame; a part of a function behind a graph break is called torch_dynamo_resume_in_….
    operators : int
        Of Dynamo's graph.
    recompile_reasons : list of str
        Which guards of earlier compilations failed; empty for the first one.
    error : str
        What ended the compilation; empty if nothing did.
    seconds : dict of str to float
        By phase: "dynamo", "aot", "lowering", "code", "kernels". What torch takes to tell of itself is in it.
    """

    compile_id: str
    function: str = ""
    file: str = ""
    line: int | None = None
    operators: int = 0
    recompile_reasons: list[str] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    error: str = ""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(trace.PHASES, 0.0))

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())


class CompileReport:
    """The regions that were compiled, in their order; prints as text, also with rich. Filled when its block ends."""

    def __init__(self) -> None:
        self.regions: list[Region] = []

    @property
    def graphs(self) -> list[Graph]:
        return [graph for region in self.regions for graph in region.graphs]

    def to_dict(self) -> dict[str, Any]:
        """Gives all of it for JSON."""
        return {
            "summary": self.summary(),
            "regions": [
                {**dataclasses.asdict(region), "total_seconds": region.total_seconds} for region in self.regions
            ],
        }

    def summary(self) -> str:
        """Gives one sentence of numbers."""
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
        from torch_outboard.compile.report_text import render

        return render(self)

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
    """Reports what torch.compile does within a `with` block, in all threads; an exception of the block passes on.

    The report is filled at the end of the block. What was compiled before it is not in it, though it may run in it.
    Compiling takes longer meanwhile: torch writes graphs as text. Imports neither Dynamo nor Inductor.
    """
    result = CompileReport()
    listener = trace.Listener()
    before = coverage()
    listener.listen()
    try:
        yield result
    finally:
        listener.stop()
        builder = _Builder()
        for record in listener.records:
            builder.add(record)
        result.regions = builder.finish(_ran(before, coverage()))


def _ran(before: Coverage, after: Coverage) -> dict[str, list[str]]:
    """Gives the providers that ran each operator meanwhile."""
    calls = {(row.op, row.provider): row.calls for row in before}
    providers: dict[str, list[str]] = {}
    for row in after:
        # Less than before: the counters were set to 0 meanwhile.
        if row.calls != calls.get((row.op, row.provider), 0):
            providers.setdefault(row.op, []).append(row.provider)
    return providers


class _Builder:
    """Makes regions of records, which come in the order of time."""

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}
        self._kinds: dict[str, str] = {}
        self._clocks: dict[int, _Clock] = collections.defaultdict(_Clock)

    def add(self, record: trace.Record) -> None:
        if record.name == "chromium_event":
            event = trace.read_event(record)
            if event is not None:
                for compile_id, phase, seconds in self._clocks[record.thread].add(event):
                    self._region(compile_id).seconds[phase] += seconds
        elif record.compile_id is not None:
            self._add_to(self._region(record.compile_id), record)

    def _region(self, compile_id: str) -> Region:
        return self._regions.setdefault(compile_id, Region(compile_id))

    def _add_to(self, region: Region, record: trace.Record) -> None:
        match record.name:
            case "compilation_metrics" | "bwd_compilation_metrics":
                _add_metrics(region, record.data, is_forward=record.name == "compilation_metrics")
            case "dynamo_graph_break_reason":
                graph_break = GraphBreak(*trace.read_break(record.payload or ""))
                # Dynamo begins a frame again when it has met a break, and tells of it again.
                if graph_break not in region.breaks:
                    region.breaks.append(graph_break)
            case "recompile_reasons":
                region.recompile_reasons = trace.read_reasons(record)
            case "aot_inference_graph" | "aot_forward_graph":
                self._kinds[region.compile_id] = record.name.split("_")[1]
            case "inductor_output_code":
                region.graphs.append(_graph(self._kinds.get(region.compile_id, "inference"), record.payload or ""))
                # The cache gives a forward graph and its backward one together.
                if self._kinds.get(region.compile_id) == "forward":
                    self._kinds[region.compile_id] = "backward"
            case "outboard_capture":
                kind, reason = trace.read_capture(record)
                for graph in region.graphs:
                    if graph.kind == kind:
                        graph.capture = f"not captured: {reason}" if reason else "captured"
            case state if state in _CACHE_STATES and region.graphs:
                region.graphs[-1].state = _CACHE_STATES[state]

    def finish(self, ran: dict[str, list[str]]) -> list[Region]:
        # Frames without an operator are compiled to nothing, and of no interest unless something stopped them.
        regions = [one for one in self._regions.values() if one.graphs or one.operators or one.breaks or one.error]
        for region in regions:
            for graph in region.graphs:
                for extern in graph.externs:
                    extern.provider = _provider(extern.name, ran)
        return regions


def _add_metrics(region: Region, data: dict[str, Any], *, is_forward: bool) -> None:
    if is_forward:
        region.function = data.get("co_name") or ""
        region.file = data.get("co_filename") or ""
        region.line = data.get("co_firstlineno")
        region.operators = data.get("graph_op_count") or 0
    if data.get("fail_type"):
        region.error = f"{data['fail_type']}: {data.get('fail_reason') or ''}"


def _graph(kind: str, code: str) -> Graph:
    graph = Graph(kind)
    try:
        graph.kernels, graph.externs = read_code(code)
    except SyntaxError as error:
        graph.note = f"the generated code cannot be read: {error}"
    if "cpp_wrapper_src" in code and not graph.kernels:
        graph.note = "generated as C++ (cpp_wrapper), in which kernels and operators are not told apart here"
    return graph


def _provider(name: str, ran: dict[str, list[str]]) -> str:
    """Gives who ran an operator, or the one that it is called on a device: convolution is convolution_overrideable."""
    base, _, overload = name.partition(".")
    exact = ran.get(f"{base}.{overload}" if overload else base, [])
    bases = {base, f"{base}_overrideable"}
    providers: Iterable[str] = exact or (
        provider for op, found in ran.items() if op.partition(".")[0] in bases for provider in found
    )
    return ", ".join(sorted(set(providers)))


class _Clock:
    """Adds up the time of one thread by what it is compiling, and the phase that it is in."""

    def __init__(self) -> None:
        self._stack: list[tuple[str, str | None, str | None]] = []
        self._last = 0.0

    def add(self, event: trace.Event) -> Iterator[tuple[str, str, float]]:
        """Yields what the time since the event before belongs to: compilation, phase, seconds."""
        if self._stack:
            _, compile_id, phase = self._stack[-1]
            if compile_id is not None and phase is not None:
                yield compile_id, phase, max(0.0, event.seconds - self._last)
        self._last = event.seconds
        if event.is_begin:
            _, compile_id, phase = self._stack[-1] if self._stack else ("", None, None)
            self._stack.append((event.name, event.compile_id or compile_id, trace.phase_of(event.name) or phase))
            return
        names = [name for name, _, _ in self._stack]
        if event.name in names:
            # What an exception has left without its end goes too.
            del self._stack[len(names) - 1 - names[::-1].index(event.name) :]
