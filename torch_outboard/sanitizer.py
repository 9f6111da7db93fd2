# SPDX-License-Identifier: BSD-3-Clause
"""The stream sanitizer: finds accesses to one storage on different streams that nothing orders.

OUTBOARD_SANITIZER=1 turns it on when a driver is attached; `enable` turns it on later. The sanitizer sees torch's
operators on every thread, and the events and waits between them. It does not see the operators of a graph's replay, or
work outside torch.
"""

from __future__ import annotations

import sys
import threading
import traceback
from dataclasses import dataclass, field
from typing import TypeAlias

from torch_outboard._errors import OutboardError

__all__ = ["Access", "Race", "StreamRaceError", "disable", "enable", "races"]

_Stream: TypeAlias = tuple[int, int]  # device, id
_Clock: TypeAlias = dict[_Stream, int]  # how much of each stream's work is known to lie before

_EVENT_RECORD, _EVENT_WAIT, _EVENT_SYNC, _STREAM_SYNC, _DEVICE_SYNC = range(5)


class StreamRaceError(OutboardError):
    """Two accesses to one storage on different streams are not ordered; raised with `enable(is_raising=True)`."""


@dataclass(frozen=True)
class Access:
    """One access: the operator, its stream, and the Python stack of the call."""

    op: str
    stream: _Stream
    is_write: bool
    tick: int
    stack: traceback.StackSummary

    def __str__(self) -> str:
        verb = "writes" if self.is_write else "reads"
        head = f"{self.op} {verb} it on stream {self.stream[1]} of device {self.stream[0]}:\n"
        return head + ("".join(self.stack.format()) or "  (in a backward pass, on a thread without Python code)\n")


@dataclass(frozen=True)
class Race:
    """Two accesses that nothing orders; at least one is a write."""

    storage: int
    first: Access
    second: Access

    def __str__(self) -> str:
        return (
            f"a possible race on the storage at {self.storage:#x}: two accesses on different streams, with nothing "
            f"between them that orders them\n\n{self.first}\nand\n\n{self.second}\n"
            "Let the second stream wait for the first: stream.wait_stream(other), or an event.\n"
        )


@dataclass
class _History:
    """The accesses to one storage since its last write."""

    write: Access | None = None
    reads: dict[_Stream, Access] = field(default_factory=dict)


def _merge(into: _Clock, other: _Clock) -> None:
    for stream, tick in other.items():
        if into.get(stream, 0) < tick:
            into[stream] = tick


class _Sanitizer:
    """Vector clocks over streams, under one lock: this class is a debugging tool, and its cost is accepted."""

    def __init__(self, is_raising: bool) -> None:
        self.is_raising = is_raising
        self.lock = threading.RLock()
        self.clocks: dict[_Stream, _Clock] = {}
        self.host: _Clock = {}  # the work that the host has waited for: later queued work is ordered after it
        self.events: dict[tuple[int, int], _Clock] = {}
        self.storages: dict[tuple[int, int], _History] = {}
        self.races: list[Race] = []
        self.reported: set[tuple[object, ...]] = set()

    def __call__(self, *arguments: object) -> None:
        found: list[Race] = []
        with self.lock:
            match arguments:
                case (str() as op, int() as device, int() as stream, tuple() as accesses):
                    found = self.access(op, (device, stream), accesses)
                case (int() as kind, int() as device, int() as stream, int() as event_device, int() as event):
                    self.order(kind, (device, stream), (event_device, event))
                case (int() as device, int() as address):
                    self.storages.pop((device, address), None)
                case _:
                    raise TypeError(f"the core calls the sanitizer with {arguments}")
        for race in found:
            if self.is_raising:
                raise StreamRaceError(str(race))
            print(f"OUTBOARD_SANITIZER: {race}", file=sys.stderr, flush=True)

    def clock_of(self, stream: _Stream) -> _Clock:
        clock = self.clocks.setdefault(stream, {stream: 0})
        _merge(clock, self.host)
        return clock

    def access(self, op: str, stream: _Stream, accesses: tuple[tuple[int, bool], ...]) -> list[Race]:
        op = op.partition("/")[0]  # a generated kernel has a number behind it; the operator is noted by its name too
        clock = self.clock_of(stream)
        clock[stream] += 1
        caller = sys._getframe(1).f_back  # None in autograd's threads
        stack = traceback.StackSummary()
        if caller is not None:
            stack = traceback.StackSummary.extract(traceback.walk_stack(caller), lookup_lines=False)
            stack.reverse()
        found: list[Race] = []
        # A storage that one operator reads and writes counts as written.
        touched: dict[int, bool] = {}
        for storage, is_write in accesses:
            touched[storage] = is_write or touched.get(storage, False)
        for storage, is_write in touched.items():
            history = self.storages.setdefault((stream[0], storage), _History())
            now = Access(op, stream, is_write, clock[stream], stack)
            before = [history.write] if history.write else []
            before += list(history.reads.values()) if is_write else []
            for other in before:
                if clock.get(other.stream, 0) < other.tick:
                    found += self.note(Race(storage, other, now))
            if is_write:
                history.write, history.reads = now, {}
            else:
                history.reads[stream] = now
        return found

    def note(self, race: Race) -> list[Race]:
        """Store a race unless a race between the same two places in the code is known."""
        key = tuple(
            (access.op, tuple((frame.filename, frame.lineno) for frame in access.stack))
            for access in (race.first, race.second)
        )
        if key in self.reported:
            return []
        self.reported.add(key)
        self.races.append(race)
        return [race]

    def order(self, kind: int, stream: _Stream, event: tuple[int, int]) -> None:
        if kind == _EVENT_RECORD:
            self.events[event] = dict(self.clock_of(stream))
        elif kind == _EVENT_WAIT:
            _merge(self.clock_of(stream), self.events.get(event, {}))
        elif kind == _EVENT_SYNC:
            _merge(self.host, self.events.get(event, {}))
        elif kind == _STREAM_SYNC:
            _merge(self.host, self.clock_of(stream))
        elif kind == _DEVICE_SYNC:
            for other in list(self.clocks):
                if other[0] == stream[0]:
                    _merge(self.host, self.clock_of(other))


_active: _Sanitizer | None = None


def enable(is_raising: bool = False) -> None:
    """Start to watch, with no accesses known; a race is printed to stderr, or raised as `StreamRaceError`."""
    from torch_outboard import _C

    global _active
    _active = _Sanitizer(is_raising)
    _C.set_trace(_active)


def disable() -> None:
    """Stop to watch; `races` still returns the races found."""
    from torch_outboard import _C

    _C.set_trace(None)


def races() -> list[Race]:
    """Return the races found since `enable`, each pair of places once."""
    return [] if _active is None else list(_active.races)
