# SPDX-License-Identifier: BSD-3-Clause
"""Figures of a good bring-up: the bandwidth that generated kernels reach, and the host time per call."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from torch_outboard.codegen.dialects.frame import Parameter
from torch_outboard.codegen.dialects.units import MatrixUnit
from torch_outboard.compile.generators import generators
from torch_outboard.compile.runtime.device_kernel import device_kernel
from torch_outboard.kernels.tune.timing import median_ratio, rounds_of

__all__ = ["SIDE", "Figure", "bar_of_side", "figures"]

SIDE = 4096
_FEW_ROWS = 16
_CALLS_PER_BURST = 50


@dataclass(frozen=True)
class Figure:
    """A measured figure, and the bar that it must reach.

    With `is_least`, the value must be at least `bar`, else at most `bar`. `bar` is None for figures to which other
    figures refer. Bandwidth bars are for matrices of SIDE rows and columns; smaller matrices have lower bars: see
    `bar_of_side`.

    `unit` is "GB/s", "TFLOP/s", "elements", "µs" or "ms", or "" for a ratio.
    """

    name: str
    value: float
    unit: str
    bar: float | None = None
    is_least: bool = False

    @property
    def is_reached(self) -> bool:
        if self.bar is None:
            return True
        return self.value >= self.bar if self.is_least else self.value <= self.bar


def figures(device: torch.device, side: int = SIDE, rounds: int = 11) -> Iterator[Figure]:
    """Measure one figure after the other on matrices of `side` rows and columns; memory must hold three of them."""
    yield from _bandwidths(device, side, rounds)
    for unit in generators().eager().dialect.units:  # type: ignore[attr-defined]
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if unit.is_rounded and before == "highest" else before)
        try:
            yield from list(_products(unit, device, side, rounds))
        finally:
            torch.set_float32_matmul_precision(before)
    yield from _host_times(device, rounds)
    yield from _first_calls(device)


def _bandwidths(device: torch.device, side: int, rounds: int) -> Iterator[Figure]:
    x, y, out = (torch.ones(side, side, device=device) for _ in range(3))
    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: out.copy_(x),
        "add": lambda: torch.add(x, y, out=out),
        "softmax": lambda: torch.softmax(x, 1, out=out),
    }
    if side < SIDE:
        u, v, few = (torch.ones(_FEW_ROWS, _FEW_ROWS, device=device) for _ in range(3))
        calls["add of few"] = lambda: torch.add(u, v, out=few)
        calls["softmax of few"] = lambda: torch.softmax(u, 1, out=few)
    for call in calls.values():
        call()
    seconds = rounds_of(calls, device, rounds, least_seconds=0.01)
    size = x.numel() * x.element_size()
    # A copy reads and writes a matrix, and so does softmax; the addition reads two.
    yield Figure("copy on the device", 2 * size / statistics.median(seconds["copy"]) / 1e9, "GB/s")
    count = f"{x.numel() / 2**20:g} M"
    add = 1.5 * median_ratio(seconds["copy"], seconds["add"])
    bar = bar_of_side(0.85, side, seconds, "add")
    yield Figure(f"add of {count} float32, share of that", add, "", bar, is_least=True)
    softmax = median_ratio(seconds["copy"], seconds["softmax"])
    bar = bar_of_side(0.8, side, seconds, "softmax")
    yield Figure(f"softmax of {side} rows, share of that", softmax, "", bar, is_least=True)


def _products(unit: MatrixUnit, device: torch.device, side: int, rounds: int) -> Iterator[Figure]:
    """Compare a matrix unit's product with the CPU's, and measure a product. Integer sums are exact in any order."""
    x, y = (torch.randint(-4, 5, size).to(unit.dtype) for size in ((131, 77), (77, 130)))
    wrong = (x.to(device) @ y.to(device)).cpu() != (x.double() @ y.double()).to(unit.dtype)
    yield Figure(f"product by {unit.name}, wrong", float(wrong.sum()), "elements", 0)
    x, y, out = (torch.ones(side, side, dtype=unit.dtype, device=device) for _ in range(3))
    torch.mm(x, y, out=out)
    seconds = rounds_of({"product": lambda: torch.mm(x, y, out=out)}, device, rounds, least_seconds=0.01)["product"]
    dtype = str(unit.dtype).removeprefix("torch.")
    yield Figure(f"product of {side} {dtype} by it", 2 * side**3 / statistics.median(seconds) / 1e12, "TFLOP/s")


def bar_of_side(bar: float, side: int, seconds: Mapping[str, Sequence[float]], name: str) -> float:
    """Return the bar for matrices of `side` rows and columns; `seconds` has the measured rounds.

    The given bar is for large matrices. A call on a small matrix spends most of its time on the launch, however good
    the kernel is. The time allowed by the bar is therefore extended by the time of the same call on a few elements.
    """
    if side >= SIDE:
        return bar
    granted = statistics.median(seconds[f"{name} of few"]) / statistics.median(seconds["copy"])
    return bar / (1 + bar * granted)


def _host_times(device: torch.device, rounds: int) -> Iterator[Figure]:
    x, y = torch.ones(1, device=device), torch.ones(1, device=device)
    dialect = generators().eager().dialect  # type: ignore[attr-defined]
    where = Parameter("where", "float", is_pointer=True, is_written=True, is_alone=True)
    launch = device_kernel(
        "nothing",
        dialect.language or dialect.name,
        ("float*",),
        dialect.source(dialect.frame("ob_nothing", [where], "")),
        entry="ob_nothing",
        grid=("1",),
        options=dialect.options,
        device=device.index,
    )

    def burst(call: Callable[[], object]) -> float:
        torch.accelerator.synchronize(device)
        begin = time.perf_counter()
        for _ in range(_CALLS_PER_BURST):
            call()
        return (time.perf_counter() - begin) / _CALLS_PER_BURST

    calls: list[Callable[[], object]] = [lambda: launch(x), lambda: torch.neg(x, out=y)]
    for call in calls:
        burst(call)
    pairs = [[burst(call) for call in calls] for _ in range(10 * rounds)]
    empty = statistics.median(pair[0] for pair in pairs) * 1e6
    yield Figure("empty launch, until it returns", empty, "µs")
    added = statistics.median(pair[1] - pair[0] for pair in pairs) * 1e6
    yield Figure("known call, beyond an empty launch", added, "µs", 1.2)


# Calls whose numbers are written into kernels, so that no plan or program of an earlier call can be
# reused.
_FIRST: tuple[Callable[[torch.Tensor, float], object], ...] = (
    lambda x, number: x.clamp(min=number),
    lambda x, number: F.leaky_relu(x, number),
    lambda x, number: F.elu(x, number),
    lambda x, number: F.layer_norm(x, x.shape[1:], eps=number),
    lambda x, number: torch.linalg.vector_norm(x, 1 + number, 1),
    lambda x, number: F.softplus(x, number),
    lambda x, number: F.hardshrink(x, number),
)


def _first_calls(device: torch.device) -> Iterator[Figure]:
    x = torch.ones(60, 96, device=device)
    seconds = []
    x.clamp(max=random.random())  # imports the modules that build plans
    for call in _FIRST:
        torch.accelerator.synchronize(device)
        begin = time.perf_counter()
        call(x, random.random())
        torch.accelerator.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    yield Figure("first call of an operator", statistics.median(seconds) * 1e3, "ms", 150)
