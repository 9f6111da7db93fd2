# SPDX-License-Identifier: BSD-3-Clause
"""How Inductor measures what it has compiled."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["benchmark"]


def benchmark(
    benchmarker: Any, call: Callable[[], Any], *, warmup: int = 25, rep: int = 100, **options: Any
) -> float | list[float]:
    """Gives the milliseconds of one call, each ended by a wait for the device: the median, or what `options` asks for.

    `warmup` and `rep` are milliseconds, as for torch's own benchmarkers. With `return_mode="all"` it gives a list of
    all times, with "min" the least.
    """
    _run(call, warmup)
    times = _run(call, rep)
    match options.get("return_mode") or "median":
        case "all":
            return times
        case "min":
            return min(times)
        case "mean":
            return statistics.fmean(times)
        case "median":
            return statistics.median(times)
        case mode:
            raise ValueError(f"return_mode is all, min, mean or median, not {mode!r}")


def _run(call: Callable[[], Any], milliseconds: float) -> list[float]:
    """Gives at least one time."""
    times: list[float] = []
    torch.accelerator.synchronize()
    end = time.perf_counter() + milliseconds / 1000
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        torch.accelerator.synchronize()
        times.append((time.perf_counter() - begin) * 1000)
    return times
