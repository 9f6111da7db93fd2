# SPDX-License-Identifier: BSD-3-Clause
"""Torch's trace of its compilations, and its differences between versions of torch.

Torch writes a structured trace to a logger if the logger has a handler; the variable TORCH_TRACE writes it to files.
The trace covers every compilation, including compilations served from a cache: names, graph breaks, generated code, and
times of phases.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = [
    "PHASES",
    "Event",
    "Listener",
    "Record",
    "phase_of",
    "read_break",
    "read_capture",
    "read_event",
    "read_reasons",
]

_LOGGER = "torch.__trace"

PHASES = ("dynamo", "aot", "lowering", "code", "kernels")

# torch's timed events. Events not listed here belong to the enclosing phase.
_PHASE_OF = {
    "dynamo": ("entire_frame_compile", "bytecode_tracing", "build_guards", "gc"),
    "aot": (
        "backend_compile",
        "create_aot_dispatcher_function",
        "entire_backward_compile",
        "min_cut_rematerialization_partition",
    ),
    "lowering": (
        "compile_fx.<locals>.fw_compiler_base",
        "compile_fx.<locals>.bw_compiler",
        "inductor_compile",
        "_recursive_pre_grad_passes",
        "_recursive_joint_graph_passes",
        "_recursive_post_grad_passes",
    ),
    "code": ("code_gen", "GraphLowering.codegen"),
    "kernels": ("PyCodeCache.load_by_key_path", "async_compile.wait", "compile_file"),
}
_PHASES_BY_EVENT = {event: phase for phase, events in _PHASE_OF.items() for event in events}

# The records that the report reads. Others, above all graphs as text, are dropped.
_WANTED = {
    "aot_forward_graph",
    "aot_inference_graph",
    "bwd_compilation_metrics",
    "chromium_event",
    "compilation_metrics",
    "dynamo_graph_break_reason",
    "fx_graph_bundled_cache_hit",
    "fx_graph_cache_bypass",
    "fx_graph_cache_hit",
    "fx_graph_cache_miss",
    "inductor_output_code",
    "outboard_capture",  # this package's own
    "recompile_reasons",
}
_WITHOUT_PAYLOAD = {"aot_forward_graph", "aot_inference_graph", "fx_graph_cache_hit", "fx_graph_cache_miss"}


@dataclass(frozen=True)
class Record:
    """One record of the trace.

    Attributes
    ----------
    name : str
        The kind of the record, or the artifact's name if torch calls it an artifact.
    compile_id : str or None
        The compilation to which the record belongs, as torch writes it: "frame/recompilation".
    thread : int
        The thread that wrote the record.
    data : dict
        The record's own fields.
    payload : str or None
        The record's text.
    """

    name: str
    compile_id: str | None
    thread: int
    data: dict[str, Any]
    payload: str | None


class Listener(logging.Handler):
    """A handler that keeps torch's records from all threads, from `listen` to `stop`."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[Record] = []

    def listen(self) -> None:
        logging.getLogger(_LOGGER).addHandler(self)

    def stop(self) -> None:
        logging.getLogger(_LOGGER).removeHandler(self)
        self.close()

    def emit(self, record: logging.LogRecord) -> None:
        # Parse nothing here: an exception would escape into the user's compilation.
        metadata: dict[str, Any] = getattr(record, "metadata", {})
        name = next(iter(metadata), "")
        data = metadata.get(name)
        if name == "artifact" and isinstance(data, dict):
            name = data.get("name", name)
        if name not in _WANTED:
            return
        payload = None if name in _WITHOUT_PAYLOAD else getattr(record, "payload", None)
        thread = record.thread or 0
        self.records.append(
            Record(name, _compile_id(metadata), thread, data if isinstance(data, dict) else {}, payload)
        )


def _compile_id(metadata: dict[str, Any]) -> str | None:
    if "frame_id" not in metadata:
        return None
    frame = f"{metadata['frame_id']}/{metadata.get('frame_compile_id', 0)}"
    autograd = metadata.get("compiled_autograd_id")
    return frame if autograd is None else f"!{autograd}/{frame}"


@dataclass(frozen=True)
class Event:
    """The start or end of a timed event of torch."""

    name: str
    is_begin: bool
    seconds: float
    compile_id: str | None


def read_event(record: Record) -> Event | None:
    """Return the event of a record named chromium_event, or None for an event without a duration."""
    payload = json.loads(record.payload or "{}")
    if payload.get("ph") not in ("B", "E"):
        return None
    compile_id = (payload.get("args") or {}).get("compile_id", "None")
    return Event(
        payload["name"],
        payload["ph"] == "B",
        payload["ts"] / 1e6,
        record.compile_id if compile_id == "None" else compile_id,
    )


def phase_of(event: str) -> str | None:
    """Return the phase that an event begins, or None if the event belongs to the enclosing phase."""
    return _PHASES_BY_EVENT.get(event)


_PLACE = re.compile(r"Graph break in user code at (.+?):(\d+)$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+?)", line (\d+)', re.MULTILINE)


def read_break(text: str) -> tuple[str, str, int | None]:
    """Return the reason, the file and the line of a graph break. torch 2.11 to 2.15 use the same wording."""
    place = _PLACE.search(text)
    if place is None:
        # Dynamo skipped the whole frame: the reason is a sentence, and the place is the last frame
        # of a stack.
        frames = _FRAME.findall(text.partition("\nTraceback")[0])
        reason = " ".join(_until(text.splitlines(), "  File "))
        return (reason, frames[-1][0], int(frames[-1][1])) if frames else (reason, "", None)
    lines = text[place.end() :].strip().splitlines()
    reason = "\n".join(_until(lines, "User code traceback:")).strip()
    return reason.removeprefix("Graph Break Reason:").strip(), place[1], int(place[2])


def read_capture(record: Record) -> tuple[str, str]:
    """Return the graph's kind and why it was not captured, or "", from a record named outboard_capture."""
    payload = json.loads(record.payload or "{}")
    return payload["kind"], payload["reason"]


def read_reasons(record: Record) -> list[str]:
    """Return the guards of earlier compilations that failed, from a record named recompile_reasons."""
    try:
        reasons = json.loads(record.payload or "[]")
    except json.JSONDecodeError:
        reasons = record.payload  # torch writes a single reason as plain text
    return [str(reason) for reason in reasons] if isinstance(reasons, list) else [str(reasons)]


def _until(lines: list[str], end: str) -> Iterator[str]:
    for line in lines:
        if line.startswith(end):
            return
        yield line
