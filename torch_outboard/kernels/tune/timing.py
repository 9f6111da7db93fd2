# SPDX-License-Identifier: BSD-3-Clause
"""Timing of a device's work: by the driver's events, in rounds in which all compared calls take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from torch_outboard import _C

__all__ = ["has_timing", "median_ratio", "rounds_of"]


def has_timing() -> bool:
    """Return True if the driver's events have times."""
    entries = _C.entries()
    return entries["event_elapsed"] or entries["event_timestamp"]


def rounds_of(
    calls: Mapping[str, Callable[[], object]], device: torch.device, rounds: int, least_seconds: float = 0.0
) -> dict[str, list[float]]:
    """Return the seconds of one call in each round, by the calls' names.

    In a round, each call is repeated for at least `least_seconds`. The order of the calls is reversed from round to
    round. Times come from events if the driver has times. Otherwise they come from the host's clock, from before the
    first call until the device is done. Run each call once before: otherwise the work of a first call would be
    measured.
    """
    measure = _by_events if has_timing() else _by_the_clock
    counts = {name: _count(measure(call, device, 1), least_seconds) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        names = list(calls) if number % 2 == 0 else list(reversed(list(calls)))
        for name in names:
            seconds[name].append(measure(calls[name], device, counts[name]))
    return seconds


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def _count(seconds: float, least: float) -> int:
    return 1 if seconds >= least else min(1000, int(least / max(seconds, 1e-7)) + 1)


def _by_events(call: Callable[[], object], device: torch.device, count: int) -> float:
    begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    stream = torch.accelerator.current_stream(device)
    stream.synchronize()
    begin.record(stream)
    for _ in range(count):
        call()
    end.record(stream)
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / count


def _by_the_clock(call: Callable[[], object], device: torch.device, count: int) -> float:
    torch.accelerator.synchronize(device)
    begin = time.perf_counter()
    for _ in range(count):
        call()
    torch.accelerator.synchronize(device)
    return (time.perf_counter() - begin) / count
