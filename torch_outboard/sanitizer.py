# SPDX-License-Identifier: BSD-3-Clause
"""The stream sanitizer: finds unordered accesses to the same memory.

OUTBOARD_SANITIZER=1 turns it on when a driver is attached; `enable` turns it on later. The sanitizer sees torch's
operators on every thread, replays of graphs, collectives, copies from and to pinned memory, reuse of memory by the
allocator, and the events and waits between them. It does not see work outside torch.
"""

from __future__ import annotations

import bisect
import functools
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, TypeAlias

from torch_outboard._errors import OutboardError

__all__ = [
    "Access",
    "Log",
    "Race",
    "StreamRaceError",
    "disable",
    "enable",
    "enable_with_log",
    "finish",
    "poisoned",
    "races",
]

_Stream: TypeAlias = tuple[int, int]  # device, id
_Clock: TypeAlias = dict[_Stream, int]  # for each stream, how much of its work is known to come earlier
_Frames: TypeAlias = tuple[tuple[CodeType, int], ...]  # innermost first
_Place: TypeAlias = tuple[str, int]

_EVENT_RECORD, _EVENT_WAIT, _EVENT_SYNC, _STREAM_SYNC, _DEVICE_SYNC = range(5)
_HOST: _Stream = (-1, 0)
_MAX_FRAMES = 64  # frames kept of a stack


class StreamRaceError(OutboardError):
    """Two accesses to the same memory are not ordered; raised with `enable(is_raising=True)`."""


@dataclass(frozen=True)
class Extent:
    """The accessed bytes of a storage: the first `width` of every `pitch` bytes, or all if `pitch` is 0."""

    begin: int
    bytes: int
    width: int = 0
    pitch: int = 0

    def overlaps(self, other: Extent) -> bool:
        if self.begin >= other.begin + other.bytes or other.begin >= self.begin + self.bytes:
            return False
        if self.pitch == 0 or self.pitch != other.pitch:
            return True
        apart = (other.begin - self.begin) % self.pitch
        return apart < self.width or self.pitch - apart < other.width

    def covers(self, other: Extent) -> bool:
        whole = self.begin <= other.begin and other.begin + other.bytes <= self.begin + self.bytes
        return whole and (
            self.pitch == 0 or (self.begin, self.width, self.pitch) == (other.begin, other.width, other.pitch)
        )


@dataclass(frozen=True)
class Access:
    """One access: the operator, its stream, and the Python stack of the call.

    A host access has the stream (-1, 0). `number` counts accesses and waits since `enable`.
    """

    op: str
    stream: _Stream
    is_write: bool
    tick: int
    frames: _Frames = field(repr=False)
    number: int = 0
    extent: Extent = Extent(0, 1)
    is_backward: bool = False

    @functools.cached_property
    def stack(self) -> traceback.StackSummary:
        """The Python stack of the call, outermost frame first; for a backward pass, the stack of calling backward."""
        frames = [traceback.FrameSummary(code.co_filename, line, code.co_name) for code, line in reversed(self.frames)]
        return traceback.StackSummary.from_list(frames)

    @functools.cached_property
    def place(self) -> _Place | None:
        """File and line of the innermost frame outside torch and this package."""
        own = next((frame for frame in self.frames if not frame[0].co_filename.startswith(_skipped_folders())), None)
        innermost = own or (self.frames[0] if self.frames else None)
        return None if innermost is None else (innermost[0].co_filename, innermost[1])

    @property
    def what(self) -> str:
        """A description of the access, without its stack."""
        verb = "writes" if self.is_write else "reads"
        where = "on the host" if self.stream == _HOST else f"on {_stream_text(self.stream)}"
        return f"{self.op} {verb} it {'in a backward pass, ' if self.is_backward else ''}{where}:"

    def __str__(self) -> str:
        return f"{self.what}\n{''.join(self.stack.format()) or '  (on a thread without Python code)'}\n"


@dataclass(frozen=True)
class Race:
    """Two unordered accesses, at least one of which is a write.

    `kind` is "order" for two accesses by streams, "reuse" if the memory was freed and reallocated between them, "host"
    if the host makes the second access, and "unwaited" if nothing ever waits for a copy to the host.
    """

    storage: int
    first: Access
    second: Access
    kind: str = "order"

    @property
    def remedy(self) -> str:
        """The missing line of code, and where it belongs."""
        first, second = _place_text(self.first), _place_text(self.second)
        first_stream, second_stream = _stream_text(self.first.stream), _stream_text(self.second.stream)
        if self.kind == "reuse":
            return (
                f"`tensor.record_stream(stream)` after {first}, where `stream` is {first_stream}, "
                f"or `stream.synchronize()` before {second}"
            )
        if self.kind in ("host", "unwaited"):
            before = second if self.kind == "host" else "the host reads the copy's result"
            return (
                f"`stream.synchronize()`, or `event.synchronize()` of an event recorded after {first}, before {before}"
            )
        return (
            f"`stream.wait_stream(other)` before {second}, where `stream` is {second_stream} "
            f"and `other` is {first_stream}, or a wait for an event recorded after {first}"
        )

    @property
    def what(self) -> str:
        """A description of the kind."""
        return {
            "order": "two accesses on different streams, which no wait or event orders",
            "reuse": "the memory was freed and reused while a stream without record_stream() may still use it",
            "host": "the host uses the memory of a copy that may not have finished",
            "unwaited": "no wait follows a copy to the host before its memory is freed or the program ends",
        }[self.kind]

    def __str__(self) -> str:
        both = f"{self.first}" if self.kind == "unwaited" else f"{self.first}\nand\n\n{self.second}"
        return f"a possible race on the storage at {self.storage:#x}: {self.what}\n\n{both}\nMissing: {self.remedy}.\n"


@functools.cache
def _skipped_folders() -> tuple[str, ...]:
    import torch

    folders = [os.path.dirname(os.path.abspath(path)) for path in (torch.__file__, __file__)]
    return (*(folder + os.sep for folder in folders), "<frozen")


def _stream_text(stream: _Stream) -> str:
    return "the host" if stream == _HOST else f"stream {stream[1]} of device {stream[0]}"


def _place_text(access: Access) -> str:
    if access.place is None:
        return access.op
    prefix = "the backward pass of " if access.is_backward else ""
    return f"{prefix}{os.path.basename(access.place[0])}:{access.place[1]}"


def _frames_of(frame: FrameType | None) -> _Frames:
    frames: list[tuple[CodeType, int]] = []
    while frame is not None and len(frames) < _MAX_FRAMES:
        frames.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(frames)


def _backward_frames() -> _Frames:
    """Return the stack of a thread that waits for a backward pass: autograd's threads run no Python code."""
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None:
            if at.f_code.co_name == "_engine_run_backward":
                return _frames_of(at)
            at = at.f_back
    return ()


@dataclass
class _Memory:
    """The accesses to a storage that may race with later accesses."""

    address: int
    bytes: int = 1
    pool: _Stream | None = None  # the stream on which the memory was allocated, if known
    accesses: list[Access] = field(default_factory=list)
    past: list[Access] = field(default_factory=list)  # accesses by earlier owners of the memory
    recorded: set[_Stream] = field(default_factory=set)


@dataclass
class Log:
    """The streams' tasks, and the events and waits that order them.

    Entries are ("task", number, stream, operator, place) and ("order", number, stream, kind, event).
    """

    entries: deque[tuple[Any, ...]] = field(default_factory=lambda: deque(maxlen=20_000))
    streams: set[_Stream] = field(default_factory=set)
    steps: int = 0
    host_copies: int = 0


def _merge(into: _Clock, other: _Clock) -> None:
    for stream, tick in other.items():
        if into.get(stream, 0) < tick:
            into[stream] = tick


class _Sanitizer:
    """Vector clocks over streams, under one lock: a debugging tool, so the cost is accepted."""

    def __init__(self, is_raising: bool, log: Log | None = None) -> None:
        self.is_raising = is_raising
        self.log = log
        self.lock = threading.RLock()
        self.clocks: dict[_Stream, _Clock] = {}
        self.host: _Clock = {}  # work that the host waited for: work queued later is ordered after it
        self.events: dict[tuple[int, int], _Clock] = {}
        self.memory: dict[tuple[int, int], _Memory] = {}
        self.addresses: dict[int, list[int]] = {}  # keys of `memory`, by device, sorted
        self.copies: list[tuple[int, Access]] = []  # copies from or to pinned memory that the host has not waited for
        self.captured: list[tuple[int, int, Extent, bool]] = []
        self.graphs: dict[int, list[tuple[int, int, Extent, bool]]] = {}
        self.replays: dict[int, _Clock] = {}  # the clock after the last replay of each graph
        self.poisons: dict[int, str] = {}  # the last use of freed memory, by the number in its poison pattern
        self.races: list[Race] = []
        self.reported: set[tuple[object, ...]] = set()
        self.number = 0

    def __call__(self, kind: str, *arguments: object) -> None:
        with self.lock:
            races = list(getattr(self, f"on_{kind}")(*arguments) or ())
        for race in races:
            if self.is_raising:
                raise StreamRaceError(str(race))
            print(f"OUTBOARD_SANITIZER: {race}", file=sys.stderr, flush=True)

    def clock_of(self, stream: _Stream) -> _Clock:
        clock = self.clocks.setdefault(stream, {stream: 0})
        _merge(clock, self.host)
        return clock

    def make(self, op: str, stream: _Stream, tick: int) -> Access:
        """Return an access without its storage, with the Python stack of torch's caller."""
        # Report an operator by its own name; a generated kernel's name ends with a number.
        op = op.partition("/")[0]
        caller = sys._getframe(2).f_back  # the caller of __call__; None on autograd's threads
        frames = _frames_of(caller)
        is_backward = not frames
        self.number += 1
        return Access(op, stream, False, tick, frames or _backward_frames(), self.number, is_backward=is_backward)

    def on_access(
        self, op: str, device: int, stream_id: int, accesses: list[tuple[int, int, int, int, int, bool]]
    ) -> Iterator[Race]:
        stream = (device, stream_id)
        touched = [(device, storage, Extent(*extent), is_write) for storage, *extent, is_write in accesses]
        return self.touch(op, stream, touched)

    def touch(self, op: str, stream: _Stream, touched: Iterable[tuple[int, int, Extent, bool]]) -> Iterator[Race]:
        clock = self.clock_of(stream)
        clock[stream] += 1
        task = self.make(op, stream, clock[stream])
        if self.log is not None:
            self.log.entries.append(("task", task.number, stream, task.op, task.place))
            self.log.streams.add(stream)
            self.log.steps += 1
        # Writes first: an operand that is both read and written counts as written.
        for device, storage, extent, is_write in sorted(touched, key=lambda touch: not touch[3]):
            memory = self.memory.get((device, storage)) or self.remember(device, storage, 1)
            now = Access(task.op, stream, is_write, task.tick, task.frames, task.number, extent, task.is_backward)
            yield from self.compare(memory, now, clock)

    def compare(self, memory: _Memory, now: Access, clock: _Clock) -> Iterator[Race]:
        kept = []
        for kind, others in (("reuse", memory.past), ("order", memory.accesses)):
            for earlier in others:
                overlaps = kind == "reuse" or now.extent.overlaps(earlier.extent)
                conflicts = overlaps and (now.is_write or earlier.is_write)
                if conflicts and clock.get(earlier.stream, 0) < earlier.tick:
                    # The remedy for reuse, record_stream, does not apply to the stream whose pool
                    # the memory comes from.
                    is_own = earlier.stream == memory.pool
                    yield from self.note(Race(memory.address, earlier, now, "order" if is_own else kind))
                    # Report each missing wait once: it would also have covered everything queued
                    # earlier.
                    _merge(clock, self.clocks[earlier.stream])
                is_covered = now.is_write or (not earlier.is_write and earlier.stream == now.stream)
                if kind == "order" and not (is_covered and now.extent.covers(earlier.extent)):
                    kept.append(earlier)
        if now.is_write:
            memory.past.clear()
        memory.accesses = [*kept, now]

    def remember(self, device: int, address: int, size: int) -> _Memory:
        memory = self.memory[device, address] = _Memory(address, size)
        bisect.insort(self.addresses.setdefault(device, []), address)
        return memory

    def on_allocate(self, device: int, address: int, size: int, stream_id: int) -> None:
        past: list[Access] = []
        addresses = self.addresses.setdefault(device, [])
        at = max(bisect.bisect_right(addresses, address) - 1, 0)
        while at < len(addresses) and addresses[at] < address + size:
            old = self.memory[device, addresses[at]]
            if old.address + old.bytes <= address:
                at += 1
                continue
            # No race: the allocator waits for recorded streams, and work that the host waited for
            # is done.
            past += [
                access
                for access in (*old.past, *old.accesses)
                if access.stream not in old.recorded and self.host.get(access.stream, 0) < access.tick
            ]
            del self.memory[device, addresses.pop(at)]
        memory = self.remember(device, address, size)
        memory.past = past
        memory.pool = (device, stream_id)

    def on_record(self, device: int, address: int, stream_id: int) -> None:
        if memory := self.memory.get((device, address)):
            memory.recorded.add((device, stream_id))

    def on_poison(self, device: int, address: int, size: int, number: int) -> None:
        memory = self.memory.get((device, address))
        last = max(memory.accesses, key=lambda access: access.number, default=None) if memory is not None else None
        used = "" if last is None else f", last used by {last.op} at {_place_text(last)}"
        self.poisons[number] = f"{size} bytes at {address:#x} of device {device}{used}"

    def on_capture(
        self, op: str, device: int, stream_id: int, accesses: list[tuple[int, int, int, int, int, bool]]
    ) -> None:
        self.captured += [(device, storage, Extent(*extent), is_write) for storage, *extent, is_write in accesses]

    def on_graph(self, device: int, stream_id: int, graph: int) -> None:
        self.graphs[graph] = list(dict.fromkeys(self.captured))
        self.captured = []

    def on_replay(self, device: int, stream_id: int, graph: int) -> Iterator[Race]:
        stream = (device, stream_id)
        # Replays of one graph wait for each other, on any streams.
        _merge(self.clock_of(stream), self.replays.get(graph, {}))
        yield from self.touch("the replay of a graph", stream, self.graphs.get(graph, ()))
        self.replays[graph] = dict(self.clocks[stream])

    def on_host_copy(
        self, op: str, device: int, stream_id: int, address: int, size: int, is_write: bool
    ) -> Iterator[Race]:
        stream = (device, stream_id)
        clock = self.clock_of(stream)
        task = self.make(op, stream, clock[stream])
        now = Access(
            task.op, stream, is_write, task.tick, task.frames, task.number, Extent(address, size), task.is_backward
        )
        for place, earlier in self.pending(now.extent):
            if (is_write or earlier.is_write) and clock.get(earlier.stream, 0) < earlier.tick:
                yield from self.note(Race(place, earlier, now))
        self.copies.append((address, now))
        if self.log is not None:
            self.log.host_copies += 1

    def on_host_access(self, op: str, address: int, size: int, is_write: bool) -> Iterator[Race]:
        for place, earlier in self.pending(Extent(address, size)):
            if is_write or earlier.is_write:
                task = self.make(op, _HOST, 0)
                now = Access(task.op, _HOST, is_write, 0, task.frames, task.number, Extent(address, size))
                yield from self.note(Race(place, earlier, now, "host"))
                _merge(self.host, {earlier.stream: earlier.tick})

    def on_host_allocate(self, address: int, size: int) -> Iterator[Race]:
        return self.unwaited(Extent(address, size))

    def unwaited(self, extent: Extent) -> Iterator[Race]:
        for place, copy in self.pending(extent):
            self.copies.remove((place, copy))
            if copy.is_write:
                yield from self.note(Race(place, copy, copy, "unwaited"))

    def pending(self, extent: Extent) -> list[tuple[int, Access]]:
        """Return copies of pinned memory that overlap the extent and that the host has not waited for."""
        self.copies = [(at, copy) for at, copy in self.copies if self.host.get(copy.stream, 0) < copy.tick]
        return [(at, copy) for at, copy in self.copies if copy.extent.overlaps(extent)]

    def note(self, race: Race) -> list[Race]:
        """Store a race, unless a race between the same two places in the code is known."""
        key = tuple((access.op, access.place) for access in (race.first, race.second))
        if key in self.reported:
            return []
        self.reported.add(key)
        self.races.append(race)
        return [race]

    def on_order(self, kind: int, device: int, stream_id: int, event_device: int, event_handle: int) -> None:
        stream, event = (device, stream_id), (event_device, event_handle)
        if kind == _EVENT_RECORD:
            self.events[event] = dict(self.clock_of(stream))
        elif kind == _EVENT_WAIT:
            _merge(self.clock_of(stream), self.events.get(event, {}))
        elif kind == _EVENT_SYNC:
            _merge(self.host, self.events.get(event, {}))
        elif kind == _STREAM_SYNC:
            _merge(self.host, self.clock_of(stream))
        elif kind == _DEVICE_SYNC:
            for device_stream in list(self.clocks):
                if device_stream[0] == device:
                    _merge(self.host, self.clock_of(device_stream))
        self.number += 1
        if self.log is not None:
            self.log.entries.append(("order", self.number, stream, kind, event))
            self.log.steps += kind == _EVENT_RECORD


_active: _Sanitizer | None = None


def enable(is_raising: bool = False) -> None:
    """Start watching, with no accesses known; a race is printed to stderr, or raised as `StreamRaceError`."""
    _start(_Sanitizer(is_raising))


def _start(sanitizer: _Sanitizer) -> None:
    from torch_outboard import _C

    global _active
    _active = sanitizer
    _C.set_observer(sanitizer)


def enable_with_log() -> Log:
    """Start watching like `enable`, and return a log that is filled from now on."""
    log = Log()
    _start(_Sanitizer(False, log))
    return log


def disable() -> None:
    """Stop watching; `races` still returns the races found."""
    from torch_outboard import _C

    _C.set_observer(None)


def finish() -> None:
    """Report copies to the host that nothing has waited for; call this at the end of a program."""
    if _active is not None:
        for race in _active.unwaited(Extent(0, 1 << 64)):
            print(f"OUTBOARD_SANITIZER: {race}", file=sys.stderr, flush=True)


def poisoned() -> dict[int, str]:
    """Return a description of freed memory and its last use, by the number in its poison pattern."""
    return {} if _active is None else dict(_active.poisons)


def races() -> list[Race]:
    """Return the races found since `enable`, once per pair of places."""
    return [] if _active is None else list(_active.races)
