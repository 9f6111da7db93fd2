# SPDX-License-Identifier: BSD-3-Clause
"""Measure a call of generated kernels with a new number or size against a call with a known one.

    OUTBOARD_OCL_HOST_ACCESS=0 benchmarks/new_values.py

Known and new values alternate in one process, one call each, after a thousand new values. A figure is the median over
the calls; the host waits for each call before the next. The bar is 20 µs above a known call.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable

from _results import RESULTS, about, write

os.environ.setdefault("OUTBOARD_OCL_HOST_ACCESS", "0")
os.environ.setdefault("OUTBOARD_FALLBACK", "error")

import torch
import torch.nn.functional as F

import torch_outboard

BAR = 20.0  # µs
FIRST_MEASURED_VALUE = 1000  # the values before it warm up

Call = Callable[[torch.Tensor, int], object]

CALLS: dict[str, Call] = {
    "arange": lambda x, n: torch.arange(n, device=x.device),
    "clamp": lambda x, n: x.clamp(-n * 0.001, n * 0.001),
    "pow": lambda x, n: x.pow(3.5 + n * 0.001),
    "linspace": lambda x, n: torch.linspace(0, n, n, device=x.device),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n * 0.1),
    "interpolate": lambda x, n: F.interpolate(x[:2, :2][None, None], (n, 2), mode="bilinear"),
    "topk": lambda x, n: x.view(-1).topk(n).values,
    "tril": lambda x, n: x.tril(n - FIRST_MEASURED_VALUE),
}


def microseconds(call: Call, x: torch.Tensor, n: int) -> float:
    torch.accelerator.synchronize()
    begin = time.perf_counter()
    call(x, n)
    elapsed = time.perf_counter() - begin
    torch.accelerator.synchronize()
    return elapsed * 1e6


def measure(call: Call, x: torch.Tensor, rounds: int) -> tuple[float, float]:
    """Return the medians of a known call and of a new one, in microseconds."""
    for n in range(2, FIRST_MEASURED_VALUE):
        call(x, n)
    known = []
    new = []
    for n in range(FIRST_MEASURED_VALUE, FIRST_MEASURED_VALUE + rounds):
        new.append(microseconds(call, x, n))
        known.append(microseconds(call, x, n))
    return statistics.median(known), statistics.median(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", default="opencl")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--only", default="", help="one of the calls")
    arguments = parser.parse_args()
    if torch_outboard.attach(arguments.driver).device_count() == 0:
        sys.exit(f"{arguments.driver} has no device here")
    torch.set_num_threads(1)
    device = torch.device(torch._C._get_privateuse1_backend_name(), 0)
    x = torch.randn(64, 64).to(device)
    gc.disable()
    rows = []
    print(f"{'call':14}{'known, µs':>12}{'new, µs':>12}{'more, µs':>12}  to reach: {BAR:g}")
    for name, call in CALLS.items():
        if arguments.only in ("", name):
            known, new = measure(call, x, arguments.rounds)
            rows.append({"call": name, "known": known, "new": new, "reached": new - known <= BAR})
            print(f"{name:14}{known:12.1f}{new:12.1f}{new - known:12.1f}  {'yes' if new - known <= BAR else 'no'}")
    write(
        RESULTS / "new_values.json",
        {"about": about(torch.get_device_module(device).get_device_properties(0)), "calls": rows},
    )


if __name__ == "__main__":
    main()
