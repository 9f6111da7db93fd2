# SPDX-License-Identifier: BSD-3-Clause
"""`outboard memory`: the content of a snapshot of device memory, as text or as a page."""

from __future__ import annotations

import collections
import html
import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

__all__ = ["memory"]

_MAX_BLOCKS = 50  # listed
_TEMPLATE = Path(__file__).with_name("memory.html")


class SnapshotError(Exception):
    """The file is not a snapshot; the message names it."""


class _Unpickler(pickle.Unpickler):
    """A reader of dicts, lists, tuples, strings and numbers.

    A class or a function in the file raises UnpicklingError.
    """

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, but a snapshot contains only plain data")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside the file, but a snapshot contains only plain data")


def read_snapshot(path: str) -> dict[str, Any]:
    """Read what `_dump_snapshot` wrote, without running anything that the file names.

    Raises SnapshotError if the file cannot be read or is not a snapshot.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror}") from error
    try:
        snapshot = _Unpickler(io.BytesIO(data)).load()
        _check(snapshot)
    except Exception as error:  # a broken pickle raises nearly anything
        reason = str(error) or type(error).__name__
        raise SnapshotError(f"{path} is not a memory snapshot: {reason}") from error
    assert isinstance(snapshot, dict)
    return snapshot


def _check(snapshot: Any) -> None:
    """Raise an error if this module could not process the snapshot."""
    for segment in snapshot["segments"]:
        _check_numbers(segment, "address", "total_size")
        for block in segment["blocks"]:
            _check_numbers(block, "size")
            _check_frames(block)
            if not isinstance(block["state"], str):
                raise TypeError("the state of a block is not a string")
    for trace in snapshot["device_traces"]:
        for entry in trace:
            _check_numbers(entry, "size")
            _check_frames(entry)
            if entry["action"] != "oom":
                _check_numbers(entry, "addr")


def _check_numbers(entry: dict[str, Any], *keys: str) -> None:
    for key in keys:
        if not isinstance(entry[key], int):
            raise TypeError(f"{key!r} is not a number")


def _check_frames(entry: dict[str, Any]) -> None:
    for frame in entry.get("frames", ()):
        if not {"name", "filename", "line"} <= frame.keys():
            raise ValueError("a stack frame lacks a name, file or line")


def _stack(entry: dict[str, Any]) -> list[str]:
    """Return the stack as lines, innermost first: only Python frames, or all frames if there are no Python frames."""
    frames = entry.get("frames", ())
    python = [frame for frame in frames if str(frame["filename"]).endswith(".py")]
    return [f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in (python or frames)]


def summarise(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Return the page's content: segments, the largest live blocks, a timeline for each device."""
    segments = []
    blocks = []
    stacks: dict[tuple[str, ...], int] = {}
    for segment in snapshot["segments"]:
        address = segment["address"]
        parts = []
        for block in segment["blocks"]:
            parts.append([block["size"], block["state"]])
            if block["state"] != "inactive":
                blocks.append((block["size"], block.get("address", address), block))
            address += block["size"]
        segments.append(
            {
                "device": segment.get("device", 0),
                "address": hex(segment["address"]),
                "size": segment["total_size"],
                "stream": segment.get("stream", 0),
                "pool": list(segment.get("segment_pool_id", (0, 0))),
                "blocks": parts,
            }
        )
    segments.sort(key=lambda entry: (entry["device"], -entry["size"]))
    blocks.sort(key=lambda entry: -entry[0])
    return {
        "segments": segments,
        "largest": [
            {"size": size, "address": hex(address), "state": block["state"], "stack": _stack(block)}
            for size, address, block in blocks[:_MAX_BLOCKS]
        ],
        "timelines": [
            _timeline(snapshot, device, trace, stacks)
            for device, trace in enumerate(snapshot["device_traces"])
            if any(entry["action"] != "snapshot" for entry in trace)
        ],
        "stacks": [list(stack) for stack in stacks],
    }


def _timeline(
    snapshot: dict[str, Any], device: int, trace: list[dict[str, Any]], stacks: dict[tuple[str, ...], int]
) -> dict[str, Any]:
    """Return the entries, and the allocated and reserved bytes after each, counted back from the final state.

    An entry is its action, address, size, and the number of its stack in `stacks`, which grows.
    """
    allocated = reserved = 0
    points, entries = [], []
    for entry in trace:
        action, size = entry["action"], entry["size"]
        if action == "alloc":
            allocated += size
        elif action == "free_completed":
            allocated -= size
        elif action in ("segment_alloc", "segment_map"):
            reserved += size
        elif action in ("segment_free", "segment_unmap"):
            reserved -= size
        points.append([allocated, reserved])
        stack = stacks.setdefault(tuple(_stack(entry)), len(stacks))
        entries.append([action, hex(entry.get("addr", 0)), size, stack])
    ours = [segment for segment in snapshot["segments"] if segment.get("device", 0) == device]
    # The bytes allocated before the history began.
    allocated_now = sum(
        block.get("requested_size", block["size"])
        for segment in ours
        for block in segment["blocks"]
        if block["state"] != "inactive"
    )
    base = [allocated_now - allocated, sum(segment["total_size"] for segment in ours) - reserved]
    return {
        "device": device,
        "points": [[max(0, a + base[0]), max(0, r + base[1])] for a, r in points],
        "entries": entries,
        "counts": dict(collections.Counter(entry["action"] for entry in trace)),
        "failures": [
            {"size": entry["size"], "free": entry.get("device_free", 0), "stack": _stack(entry)}
            for entry in trace
            if entry["action"] == "oom"
        ],
    }


def page(title: str, summary: dict[str, Any]) -> str:
    """Return the summary as one self-contained HTML page."""
    # "</script>" in a file's name must not end the script.
    data = json.dumps(summary).replace("<", "\\u003c")
    return _TEMPLATE.read_text().replace("{{title}}", html.escape(title)).replace("{{data}}", data)


@click.command()
@click.argument("snapshot", type=click.Path())
@click.option("--html", "output", metavar="FILE", type=click.Path(), help="Write a page: timeline, segments, blocks.")
def memory(snapshot: str, output: str | None) -> None:
    """Show the content of a memory snapshot: the SNAPSHOT file that torch.<name>.memory._dump_snapshot wrote.

    The file is read as plain data: nothing that it names is run.
    """
    try:
        summary = summarise(read_snapshot(snapshot))
    except SnapshotError as error:
        raise click.ClickException(str(error)) from error
    if output is not None:
        Path(output).write_text(page(Path(snapshot).name, summary), encoding="utf-8")
        click.echo(f"wrote {output}", file=sys.stderr)
        return
    for device in sorted({segment["device"] for segment in summary["segments"]}):
        segments = [segment for segment in summary["segments"] if segment["device"] == device]
        live = sum(size for segment in segments for size, state in segment["blocks"] if state != "inactive")
        reserved = sum(segment["size"] for segment in segments)
        click.echo(f"device {device}: {len(segments)} segments, {_text(reserved)} reserved, {_text(live)} in use")
    for block in summary["largest"][:10]:
        click.echo(f"{_text(block['size']):>12}  {block['address']}  {(block['stack'] or ['no stack'])[0]}")


def _text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
