# SPDX-License-Identifier: BSD-3-Clause
"""Inductor's benchmarking of compiled code on the device."""

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
    """Return the milliseconds of one call including a device synchronization: the median, or as `return_mode` selects.

    `warmup` and `rep` are milliseconds, as for torch's own benchmarkers. `return_mode="all"` returns a list of all
    times, "min" the least, and "mean" the mean.

    Raises
    ------
    ValueError
        If `return_mode` is unknown.
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
            raise ValueError(f"return_mode must be all, min, mean or median, not {mode!r}")


def _run(call: Callable[[], Any], milliseconds: float) -> list[float]:
    """Return the times of calls made within the given milliseconds; at least one call."""
    times: list[float] = []
    torch.accelerator.synchronize()
    end = time.perf_counter() + milliseconds / 1000
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        torch.accelerator.synchronize()
        times.append((time.perf_counter() - begin) * 1000)
    return times
