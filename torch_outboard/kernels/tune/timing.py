# SPDX-License-Identifier: BSD-3-Clause
"""Timing of device work: with the driver's events, in rounds in which all compared calls take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from torch_outboard import _C

__all__ = ["has_timing", "median_ratio", "rounds_of"]


def has_timing() -> bool:
    """Return True if the driver's events record times."""
    entries = _C.entries()
    return entries["event_elapsed"] or entries["event_timestamp"]


def rounds_of(
    calls: Mapping[str, Callable[[], object]], device: torch.device, rounds: int, least_seconds: float = 0.0
) -> dict[str, list[float]]:
    """Return the seconds per call in each round, by call name.

    In a round, each call is repeated for at least `least_seconds`. The order of the calls is reversed from round to
    round. Times come from the driver's events if they record times. Otherwise the host's clock measures from before the
    first call until the device is idle. Run each call once beforehand, or its first-call work is measured too.
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
    """Return the median over rounds of the ratio `ours` / `theirs`."""
    return statistics.median(ours_s / theirs_s for ours_s, theirs_s in zip(ours, theirs, strict=True))


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
