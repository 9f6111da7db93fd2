# SPDX-License-Identifier: BSD-3-Clause
"""An operator and its gradients on a device and on torch's CUDA device, in one process in turns.

`--driver opencl` measures NVIDIA's OpenCL. `--generated` measures generated kernels instead of the driver's libraries,
and `--units` such kernels with matrix units.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from _results import about, results_of, write

# Before torch is imported, which may attach a driver.
os.environ.setdefault("OUTBOARD_FALLBACK", "error")

import torch

import torch_outboard

CALLS = 20
Function = Callable[[], Any]
Difference = Callable[[Any, Any], float]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
    else:
        torch.accelerator.synchronize(device)


def _seconds(function: Function, device: torch.device) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        result = function()
    _wait(device)
    elapsed = time.perf_counter() - begin
    del result
    return elapsed / CALLS


def _measure(pair: tuple[Function, Function], devices: Any, rounds: int, difference: Difference) -> dict[str, float]:
    ours, theirs = pair
    row = {"difference": difference(ours(), theirs())}
    turns = list(zip(pair, devices, strict=True))
    for turn in turns:
        _seconds(*turn)
    pairs = []
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        measured = {place: _seconds(*turns[place]) for place in order}
        pairs.append((measured[0], measured[1]))
    row["ours"] = statistics.median(pair[0] for pair in pairs) * 1e3
    row["theirs"] = statistics.median(pair[1] for pair in pairs) * 1e3
    row["ratio"] = statistics.median(pair[0] / pair[1] for pair in pairs)
    return row


def compare(
    name: str,
    title: str,
    cases: Mapping[str, Any],
    functions: Callable[[Any, torch.device], tuple[Function, Function]],
    difference: Difference,
) -> int:
    """Print a table and write it to results/NAME-DRIVER.json, or where --json says. Return the process's status.

    `functions` returns an operator and its gradients for a case and a device. `difference` compares their results.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--driver", choices=("nv", "opencl", "vulkan"), default="nv")
    parser.add_argument("--generated", action="store_true", help="generated kernels, no libraries")
    parser.add_argument("--units", action="store_true", help="generated kernels with matrix units")
    parser.add_argument("--only", default="", help="cases whose name matches this regular expression")
    options = parser.parse_args()
    way = "-units" if options.units else "-generated" if options.generated else ""
    os.environ.setdefault("OUTBOARD_PROVIDERS", "generated" if way else "native,generated")
    module = torch_outboard.attach(options.driver, matrix_units=options.units)
    if module.device_count() == 0 or not torch.cuda.is_available():
        print("There is no GPU here, or torch has no CUDA to compare with.")
        return 0
    devices = (torch.device(torch_outboard.attached_driver().name, 0), torch.device("cuda", 0))
    print("| case | ours, ms | torch's, ms | ratio | gradients, ms | torch's, ms | ratio | difference |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    rows = {}
    for case_name, case in cases.items():
        if not re.search(options.only, case_name):
            continue
        pairs = zip(*(functions(case, device) for device in devices), strict=True)
        forward, backward = (_measure(pair, devices, options.rounds, difference) for pair in pairs)
        rows[case_name] = {"forward": forward, "backward": backward}
        figures = [f"{row[key]:.3f}" for row in (forward, backward) for key in ("ours", "theirs", "ratio")]
        worst = max(forward["difference"], backward["difference"])
        print(f"| {case_name} | {' | '.join(figures)} | {worst:.1e} |", flush=True)
    calls: Any = torch_outboard.coverage().calls(provider="generated")
    print(f"\ncalls by generated kernels: {calls}")
    path = options.json or results_of(options.driver) / f"{name}-{options.driver}{way}.json"
    write(path, {"about": about(module.get_device_properties(0)), "milliseconds": rows})
    return 0
