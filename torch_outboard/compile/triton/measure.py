# SPDX-License-Identifier: BSD-3-Clause
"""How long the device takes for a launch, by its own events, with a cache that holds nothing of the launch before."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from torch_outboard.device.devices import get_device_properties

__all__ = ["milliseconds", "times_of"]

_LEAST, _MOST = 3, 30  # times that a launch is measured
_ENOUGH = 10.0  # milliseconds of launches


def milliseconds(launch: Callable[[], object], prepare: Callable[[], None], device: torch.device) -> float:
    """Gives the median of a launch on the current stream, and waits for it. `prepare` comes before each."""
    return statistics.median(times_of(launch, prepare, device))


def times_of(launch: Callable[[], object], prepare: Callable[[], None], device: torch.device) -> list[float]:
    """Gives the milliseconds of several launches, as `milliseconds`."""
    flush = torch.empty(2 * get_device_properties(device.index).l2_cache_size, dtype=torch.uint8, device=device)
    prepare()
    launch()  # what fails, fails here, and what is made at the first launch is made
    torch.accelerator.synchronize(device)
    first = _run(launch, prepare, flush, 1)[0]
    times = max(_LEAST, min(_MOST, int(_ENOUGH / max(first, 1e-3))))
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
