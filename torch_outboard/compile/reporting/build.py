# SPDX-License-Identifier: BSD-3-Clause
"""Build regions from torch's records."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from torch_outboard.compile.reporting import trace
from torch_outboard.compile.reporting.code import read_code
from torch_outboard.compile.reporting.data import Graph, GraphBreak, Region

__all__ = ["Builder", "Clock", "read_graph"]

_CACHE_STATES = {
    "fx_graph_cache_miss": "compiled",
    "fx_graph_cache_bypass": "compiled",
    "fx_graph_cache_hit": "from the cache",
    "fx_graph_bundled_cache_hit": "from the cache",
}


class Builder:
    """Builds regions from records, which must arrive in order of time."""

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}
        self._kinds: dict[str, str] = {}
        self._clocks: dict[int, Clock] = collections.defaultdict(Clock)

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
                # Dynamo restarts a frame after a break, and reports the break again.
                if graph_break not in region.breaks:
                    region.breaks.append(graph_break)
            case "recompile_reasons":
                region.recompile_reasons = trace.read_reasons(record)
            case "aot_inference_graph" | "aot_forward_graph":
                self._kinds[region.compile_id] = record.name.split("_")[1]
            case "inductor_output_code":
                region.graphs.append(read_graph(self._kinds.get(region.compile_id, "inference"), record.payload or ""))
                # The cache returns a forward graph together with its backward graph.
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
        # Frames without an operator compile to nothing. Omit them, unless a break or an error
        # stopped them.
        regions = [
            region
            for region in self._regions.values()
            if region.graphs or region.operators or region.breaks or region.error
        ]
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


def read_graph(kind: str, code: str) -> Graph:
    graph = Graph(kind)
    try:
        graph.kernels, graph.externs = read_code(code)
    except SyntaxError as error:
        graph.note = f"the generated code cannot be read: {error}"
    if "cpp_wrapper_src" in code and not graph.kernels:
        graph.note = "generated as C++ (cpp_wrapper), where this report cannot distinguish kernels from operators"
    return graph


def _provider(name: str, ran: dict[str, list[str]]) -> str:
    """Return the providers that ran an operator. On a device, convolution runs as convolution_overrideable."""
    base, _, overload = name.partition(".")
    exact = ran.get(f"{base}.{overload}" if overload else base, [])
    bases = {base, f"{base}_overrideable"}
    providers: Iterable[str] = exact or (
        provider for op, op_providers in ran.items() if op.partition(".")[0] in bases for provider in op_providers
    )
    return ", ".join(sorted(set(providers)))


class Clock:
    """The time of one thread, summed by compilation and phase."""

    def __init__(self) -> None:
        self._stack: list[tuple[str, str | None, str | None]] = []
        self._last = 0.0

    def add(self, event: trace.Event) -> Iterator[tuple[str, str, float]]:
        """Yield the compilation, the phase and the seconds elapsed since the previous event."""
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
            # This also removes events that an exception left without an end.
            del self._stack[len(names) - 1 - names[::-1].index(event.name) :]
