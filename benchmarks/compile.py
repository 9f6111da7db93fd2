# SPDX-License-Identifier: BSD-3-Clause
"""Measure a compiled function on the device, against the same function compiled for the CPU.

    python benchmarks/compile.py [--driver=NAME] [--rounds=N] [--json=PATH] [--check]

One process measures everything, and the variants alternate in each round. Figures are medians of the rounds, and ratios
of these. Compilation is measured cold, in an empty cache folder, and warm, from that folder; each measurement has its
own process. --check makes a missed bar an error.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _results import write
from torch import nn

import torch_outboard

KERNEL_BAR = 1.05  # of kernels above a millisecond
LAUNCH_BAR = 1.3
COMPILE_BAR = 1.1
MILLISECOND = 1e-3


@dataclass
class Row:
    """Seconds of one call on the device and on the CPU; `bar` is 0 without a bar."""

    name: str
    device: float
    cpu: float
    bar: float

    @property
    def ratio(self) -> float:
        return self.device / self.cpu


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.max_pool2d(F.relu(self.second(F.relu(self.first(x)))), 2))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def training_step(kind: type[nn.Module], x: torch.Tensor, place: str) -> Callable[[], object]:
    torch.manual_seed(0)
    model = kind().to(place)
    forward = torch.compile(model, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    here = x.to(place)

    def step() -> None:
        optimizer.zero_grad()
        forward(here).square().mean().backward()
        optimizer.step()

    return step


def compiled(function: Callable[..., Any], *arguments: torch.Tensor) -> Callable[[str], Callable[[], object]]:
    def make(place: str) -> Callable[[], object]:
        here = [argument.to(place) for argument in arguments]
        ready = torch.compile(function, fullgraph=True)
        return lambda: ready(*here)

    return make


def workloads() -> dict[str, Callable[[str], Callable[[], object]]]:
    big = torch.randn(1 << 24)
    square = torch.randn(4096, 4096)
    return {
        "one kernel of 4 floats": compiled(lambda x: x.cos() + 1, torch.randn(4)),
        "gelu*mul+add, 16 M floats": compiled(lambda x, y: F.gelu(x) * y + x, big, big.flip(0)),
        "softmax 4096 x 4096": compiled(lambda x: x.softmax(-1), square),
        "layer norm 4096 x 4096": compiled(lambda x: F.layer_norm(x, (4096,)), square),
        "digits CNN, training step": lambda place: training_step(Digits, torch.randn(64, 1, 8, 8), place),
        "transformer, training step": lambda place: training_step(Transformer, torch.randn(8, 64, 128), place),
    }


def seconds(function: Callable[[], object], place: str, calls: int) -> float:
    def wait() -> None:
        if place != "cpu":
            torch.accelerator.synchronize()

    wait()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    wait()
    return (time.perf_counter() - start) / calls


def measure_calls(device: str, rounds: int) -> list[Row]:
    rows = []
    for name, make in workloads().items():
        functions = {place: make(place) for place in (device, "cpu")}
        once = {place: [seconds(function, place, 1) for _ in range(4)][-1] for place, function in functions.items()}
        calls = max(1, min(2000, int(0.05 / max(once.values()))))
        times: dict[str, list[float]] = {place: [] for place in functions}
        for number in range(rounds):
            for place in functions if number % 2 == 0 else reversed(functions):
                times[place].append(seconds(functions[place], place, calls))
        ours, theirs = (statistics.median(times[place]) for place in (device, "cpu"))
        bar = LAUNCH_BAR if name.startswith("one kernel") else KERNEL_BAR if theirs >= MILLISECOND else 0.0
        rows.append(Row(name, ours, theirs, bar))
    return rows


FIRST = """
import sys, time, torch
sys.path.insert(0, sys.argv[1])
from compile import Transformer
place = "cpu"
if sys.argv[2] != "cpu":
    import torch_outboard
    torch_outboard.attach(sys.argv[2])
    place = torch_outboard.attached_driver().name
import torch._inductor.compile_fx
torch.manual_seed(0)
model = Transformer().to(place)
x = torch.randn(8, 64, 128).to(place)
start = time.perf_counter()
torch.compile(model, fullgraph=True)(x).square().mean().backward()
if place != "cpu":
    torch.accelerator.synchronize()
print(time.perf_counter() - start)
"""


def measure_compilation(driver: str, rounds: int) -> list[Row]:
    """Time the first step of the transformer, in processes that share a cache folder for each device."""
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for place in (driver, "cpu") if number % 2 == 0 else ("cpu", driver):
            with tempfile.TemporaryDirectory() as folder:
                for start in ("cold", "warm"):
                    answer = subprocess.run(
                        [sys.executable, "-c", FIRST, os.path.dirname(os.path.abspath(__file__)), place],
                        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder},
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                    times.setdefault((start, place), []).append(float(answer.stdout.split()[-1]))
    return [
        Row(
            f"transformer, first step, {start} cache",
            statistics.median(times[start, driver]),
            statistics.median(times[start, "cpu"]),
            COMPILE_BAR,
        )
        for start in ("cold", "warm")
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="sim")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compile-rounds", type=int, default=1, help="processes for each kind of start; 0 for none")
    parser.add_argument("--json", type=Path, help="also writes the rows there")
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    options = parser.parse_args()
    torch_outboard.attach(options.driver)
    driver = torch_outboard.attached_driver()
    assert driver is not None
    rows = measure_calls(driver.name, options.rounds)
    rows += measure_compilation(options.driver, options.compile_rounds) if options.compile_rounds else []
    print(f"torch {torch.__version__}, {driver.name}, {options.rounds} rounds, {torch.get_num_threads()} threads")
    is_met = True
    for row in rows:
        missed = row.bar > 0 and row.ratio > row.bar
        is_met &= not missed
        verdict = "" if row.bar == 0 else f"bar {row.bar} {'MISSED' if missed else 'met'}"
        print(f"  {row.name:<40}{row.device * 1e6:>13.1f} us{row.cpu * 1e6:>13.1f} us{row.ratio:>7.2f}  {verdict}")
    if options.json:
        write(options.json, {"torch": torch.__version__, "rows": [asdict(row) for row in rows]})
    return 0 if is_met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
