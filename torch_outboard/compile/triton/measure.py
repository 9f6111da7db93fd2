# SPDX-License-Identifier: BSD-3-Clause
"""Measures a launch with the device's events; caches are flushed before each launch."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from torch_outboard.device.devices import get_device_properties

__all__ = ["milliseconds", "times_of"]

_MIN_MEASUREMENTS, _MAX_MEASUREMENTS = 3, 30
_TARGET_MILLISECONDS = 10.0  # launches that fill this time suffice


def milliseconds(launch: Callable[[], object], prepare: Callable[[], None], device: torch.device) -> float:
    """Wait, then return the median time of a launch on the current stream. `prepare` runs before each launch."""
    return statistics.median(times_of(launch, prepare, device))


def times_of(launch: Callable[[], object], prepare: Callable[[], None], device: torch.device) -> list[float]:
    """Return the milliseconds of several launches; see `milliseconds`."""
    flush = torch.empty(2 * get_device_properties(device.index).l2_cache_size, dtype=torch.uint8, device=device)
    prepare()
    launch()  # raises errors and creates objects of the first launch
    torch.accelerator.synchronize(device)
    first = _run(launch, prepare, flush, 1)[0]
    times = max(_MIN_MEASUREMENTS, min(_MAX_MEASUREMENTS, int(_TARGET_MILLISECONDS / max(first, 1e-3))))
    return _run(launch, prepare, flush, times)


def _run(launch: Callable[[], object], prepare: Callable[[], None], flush: torch.Tensor, times: int) -> list[float]:
    pairs = []
    for _ in range(times):
        prepare()
        flush.zero_()
        begin, end = (torch.Event(flush.device, enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        pairs.append((begin, end))
    torch.accelerator.synchronize(flush.device)
    return [begin.elapsed_time(end) for begin, end in pairs]
