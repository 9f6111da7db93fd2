# SPDX-License-Identifier: BSD-3-Clause
"""Measures generated kernels of eager operators against torch's kernels for the CPU, on a device that is the same CPU.

Both take turns in one process, in an order that changes each round. A figure is the median of the rounds, the ratio the
median of the rounds' ratios. Each call is waited for.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from _results import RESULTS, about, write

os.environ.setdefault("OUTBOARD_PROVIDERS", "native,compiled")
os.environ.setdefault("OUTBOARD_FALLBACK", "error")

import torch
import torch.nn.functional as F

import torch_outboard

Case = tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], torch.dtype, float | None]


def fused(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return F.gelu(x) * y + z


BIG = (4096, 4096)
SQUARE = (1024, 1024)
# The function, its arguments' sizes, their type, and the ratio to reach.
CASES: dict[str, Case] = {
    "product 1024³ float32": (torch.mm, (SQUARE, SQUARE), torch.float32, 1.3),
    "product 1024³, transposed": (lambda x, y: x @ y.t(), (SQUARE, SQUARE), torch.float32, None),
    "product 1024³ bfloat16": (torch.mm, (SQUARE, SQUARE), torch.bfloat16, None),
    "convolution 3×3, 64 channels of 56², 8 images": (
        lambda x, w: F.conv2d(x, w, padding=1),
        ((8, 64, 56, 56), (64, 64, 3, 3)),
        torch.float32,
        None,
    ),
    "gelu·mul·add 16 M, three calls": (fused, (BIG, BIG, BIG), torch.float32, None),
    "row sums 4096²": (lambda x: x.sum(1), (BIG,), torch.float32, None),
    "column sums 4096²": (lambda x: x.sum(0), (BIG,), torch.float32, None),
    "softmax 4096²": (lambda x: x.softmax(1), (BIG,), torch.float32, None),
    "layer norm 4096²": (lambda x: F.layer_norm(x, (4096,)), (BIG,), torch.float32, None),
}


def measure(case: Case, device: torch.device, rounds: int) -> dict[str, float]:
    function, sizes, dtype, _ = case
    theirs = [torch.randn(size).to(dtype) for size in sizes]
    ours = [one.to(device) for one in theirs]

    def seconds(arguments: list[torch.Tensor]) -> float:
        begin = time.perf_counter()
        result = function(*arguments)
        torch.accelerator.synchronize(device)
        elapsed = time.perf_counter() - begin
        del result
        return elapsed

    for arguments in (ours, theirs):  # makes the kernels
        seconds(arguments)
    pairs = []
    for number in range(rounds):
        order = (ours, theirs) if number % 2 == 0 else (theirs, ours)
        first, second = (seconds(arguments) for arguments in order)
        pairs.append((first, second) if number % 2 == 0 else (second, first))
    return {
        "ours": statistics.median(pair[0] for pair in pairs) * 1e3,
        "cpu": statistics.median(pair[1] for pair in pairs) * 1e3,
        "ratio": statistics.median(pair[0] / pair[1] for pair in pairs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS / "kernels.json")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    options = parser.parse_args()
    module = torch_outboard.attach("opencl")
    if module.device_count() == 0 or module.get_device_properties(0).machine != "cpu":
        print("There is no OpenCL device here that is a CPU. scripts/opencl-runtime installs one or says how.")
        return 0
    device = torch.device(torch_outboard.attached_driver().name, 0)
    properties = module.get_device_properties(0)
    rows = {name: measure(case, device, options.rounds) for name, case in CASES.items()}
    print(f"{properties.name}, {properties.driver_version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| case | generated, ms | torch's, ms | ratio | to reach | reached |\n|---|---:|---:|---:|---|---|")
    missed = False
    for name, row in rows.items():
        bar = CASES[name][3]
        reached = "" if bar is None else "yes" if row["ratio"] <= bar else "no"
        missed |= reached == "no"
        to_reach = "" if bar is None else f"≤ {bar} ×"
        print(f"| {name} | {row['ours']:.2f} | {row['cpu']:.2f} | {row['ratio']:.2f} | {to_reach} | {reached} |")
    write(options.json, {"about": about(properties), "milliseconds": rows})
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
