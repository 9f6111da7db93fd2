# SPDX-License-Identifier: BSD-3-Clause
"""Measure the cost of a call on an attached device, against the same call on plain CPU tensors.

Both run in one process and alternate; each figure is the median over the rounds. A process has one driver. Each section
attaches the driver with its own options, and is therefore a child process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _results import RESULTS, write

# Bars of a case: the largest ratio to the CPU, the most microseconds above it, or the most
# microseconds of a call; and the largest ratio until all is done.
RATIO, ABOVE, CALL, DONE = "ratio", "above", "call", "done"


@dataclass(frozen=True)
class Case:
    """One statement, and the bar for each section."""

    name: str
    statement: str
    bars: dict[str, tuple[str, float]]
    loops: int = 300


ALLOCATION = {"inline": (RATIO, 1.15), "queued": (RATIO, 1.15)}
SMALL = {"inline": (ABOVE, 1.2), "queued": (CALL, 2.5)}

CASES = [
    Case("empty", "empty(16, device=device)", ALLOCATION, 3000),
    Case("empty_strided", "empty_strided((4, 4), (4, 1), device=device)", ALLOCATION, 3000),
    Case("view", "grid.view(-1)", ALLOCATION, 3000),
    Case("slice", "grid[1:3]", ALLOCATION, 3000),
    Case("add, 1 element", "add(one, other)", SMALL),
    Case("add_, 1 element", "one.add_(other)", SMALL),
    Case("add out=, 1 element", "add(one, other, out=out)", SMALL),
    Case("cat of four", "cat(four)", SMALL),
    Case("mm 8 x 8", "mm(small, small)", SMALL),
    Case("add, 1 M float32", "add(large, large, out=large_out)", {"inline": (RATIO, 1.1)}, 30),
    Case("training step", "step()", {}, 20),
]

# Statements that wait for their result, and statements of many small calls.
WAITS = [
    Case("item of a done scalar", "scalar.item()", {"waits": (ABOVE, 3.0)}, 1000),
    Case("item behind a queued add", "add(one, other, out=out).item()", {"waits": (ABOVE, 8.0)}, 300),
    Case("nonzero of 1,000", "mask.nonzero()", {"waits": (RATIO, 3.0)}, 300),
    Case("masked_select of 1,000", "thousand.masked_select(mask)", {"waits": (RATIO, 3.0)}, 300),
    Case("LSTM, 50 steps forward and backward", "recur()", {"waits": (DONE, 3.0)}, 5),
    Case("clip_grad_norm_ of 20", "clip_grad_norm_(parameters, 1.0)", {"waits": (DONE, 3.0)}, 50),
    Case("Normal, sample and log_prob", "draw(Normal(zeros, ones))", {"waits": (DONE, 3.0)}, 50),
    Case("Categorical, sample and log_prob", "draw(Categorical(ones))", {"waits": (DONE, 3.0)}, 50),
]

SECTIONS = {
    "inline": ({"schedule": "inline"}, CASES),
    "queued": ({"schedule": "normal"}, CASES),
    "waits": ({"schedule": "normal"}, WAITS),
}

# Calls on new sizes, and the microseconds that such a call may take above a call on known sizes.
NEW_SIZE_BAR = 10.0
NEW_SIZES = {
    "element-wise": "for cut in cuts: neg(cut)",
    "reduction": "for cut in cuts: sum(cut, 1)",
    "matrix product": "for cut in cuts: mm(cut, small)",
}


def values_on(device: Any) -> dict[str, Any]:
    """Return the names that the statements use, with tensors on `device`."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)
    inputs, labels = torch.randn(16, 32).to(device), torch.arange(16).remainder(10).to(device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    recurrent = nn.LSTM(32, 64).to(device)
    sequence = torch.randn(50, 8, 32).to(device).requires_grad_()

    def recur() -> None:
        recurrent(sequence)[0].sum().backward()

    parameters = [nn.Parameter(torch.ones(64, device=device)) for _ in range(20)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)

    def draw(distribution: torch.distributions.Distribution) -> None:
        distribution.log_prob(distribution.sample())

    single = torch.ones(1, device=device)
    thousand = torch.randn(1000).to(device)
    return {
        "recur": recur,
        "parameters": parameters,
        "clip_grad_norm_": nn.utils.clip_grad_norm_,
        "draw": draw,
        "Normal": torch.distributions.Normal,
        "Categorical": torch.distributions.Categorical,
        "zeros": torch.zeros(64, device=device),
        "ones": torch.ones(64, device=device),
        "scalar": torch.ones((), device=device),
        "thousand": thousand,
        "mask": thousand > 0,
        **{name: getattr(torch, name) for name in ("empty", "empty_strided", "add", "cat", "mm")},
        "device": device,
        "grid": torch.zeros(8, 8, device=device),
        "one": single,
        # Adding it again and again must not leave the range of float32.
        "other": torch.zeros(1, device=device),
        "out": torch.empty(1, device=device),
        "four": [torch.ones(4, device=device) for _ in range(4)],
        "small": torch.eye(8, device=device),
        "large": torch.ones(1 << 20, device=device),
        "large_out": torch.empty(1 << 20, device=device),
        "step": step,
    }


def seconds_per_call(timer: timeit.Timer, loops: int, wait: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds until a call returns, and the seconds per call until all calls are done."""
    wait()
    start = time.perf_counter()
    returned = timer.timeit(loops)
    wait()
    return returned / loops, (time.perf_counter() - start) / loops


def measure_case(
    case: Case, names: dict[str, dict[str, Any]], wait: Callable[[], None], rounds: int
) -> dict[str, float]:
    timers = {place: timeit.Timer(case.statement, globals=values) for place, values in names.items()}
    waits = {"cpu": lambda: None, "device": wait}
    samples: dict[str, list[tuple[float, float]]] = {place: [] for place in timers}
    for number in range(-1, rounds):
        # The order alternates, so that neither side always runs on the
        # caches that the other one left.
        for place in sorted(timers, reverse=bool(number % 2)):
            sample = seconds_per_call(timers[place], case.loops, waits[place])
            if number >= 0:
                samples[place].append(sample)
    ratios = [device[0] / cpu[0] for device, cpu in zip(samples["device"], samples["cpu"], strict=True)]
    done_ratios = [device[1] / cpu[1] for device, cpu in zip(samples["device"], samples["cpu"], strict=True)]
    micro = 1e6
    return {
        "cpu_us": micro * statistics.median(sample[0] for sample in samples["cpu"]),
        "device_us": micro * statistics.median(sample[0] for sample in samples["device"]),
        "device_done_us": micro * statistics.median(sample[1] for sample in samples["device"]),
        "ratio": statistics.median(ratios),
        "done_ratio": statistics.median(done_ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def measure_round_trip(names: dict[str, dict[str, Any]], wait: Callable[[], None], rounds: int) -> dict[str, float]:
    """Measure an add of one element from the call until the host knows that the add is done, with an empty queue."""
    values = names["device"]
    timers = {
        "call_to_done_us": timeit.Timer("add(one, other, out=out); wait()", globals={**values, "wait": wait}),
        "wait_on_idle_us": timeit.Timer("wait()", globals={"wait": wait}),
    }
    loops = 200
    samples = {name: [timer.timeit(loops) / loops * 1e6 for _ in range(rounds)] for name, timer in timers.items()}
    return {name: statistics.median(values) for name, values in samples.items()}


def measure_new_sizes(wait: Callable[[], None], device: Any, rounds: int) -> dict[str, dict[str, float]]:
    """Measure calls until they return, with sizes that are new to the process, and again with the same sizes."""
    import torch

    count = 100
    base, small = torch.ones(count * (rounds + 2), 8, device=device), torch.eye(8, device=device)
    calls = {name: getattr(torch, name) for name in ("neg", "sum", "mm")}
    results = {}
    for name, statement in NEW_SIZES.items():
        samples: dict[str, list[float]] = {"new_us": [], "known_us": []}
        for number in range(rounds):
            cuts = [base[: count * (number + 1) + extra] for extra in range(count)]
            timer = timeit.Timer(statement, globals={"cuts": cuts, "small": small, **calls})
            for kind in samples:
                wait()
                samples[kind].append(timer.timeit(1) / count * 1e6)
        wait()
        results[name] = {kind: statistics.median(values) for kind, values in samples.items()}
    return results


def run_section(driver: str, section: str, rounds: int, threads: int) -> dict[str, Any]:
    import torch

    import torch_outboard

    options, cases = SECTIONS[section]
    torch.set_num_threads(threads)
    torch_outboard.attach(driver, **options)
    device = torch.device(driver, 0)
    names = {"cpu": values_on(torch.device("cpu")), "device": values_on(device)}

    def wait() -> None:
        torch.accelerator.synchronize(device)

    return {
        "options": options,
        # If the call itself runs the kernel, the time would include the cost of
        # new sizes in the CPU's libraries.
        "new_sizes": measure_new_sizes(wait, device, rounds) if section == "queued" else {},
        "cases": {case.name: measure_case(case, names, wait, rounds) for case in cases},
        "hop": measure_round_trip(names, wait, rounds),
    }


def machine() -> dict[str, Any]:
    import torch

    model = platform.processor() or platform.machine()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        names = [line.split(":", 1)[1].strip() for line in cpu_info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def verdict(case: Case, section: str, figures: dict[str, float]) -> tuple[str, bool]:
    """Return the bar as text and whether the figures meet the bar."""
    if section not in case.bars:
        return "", True
    kind, limit = case.bars[section]
    measured = {
        RATIO: figures["ratio"],
        ABOVE: figures["device_us"] - figures["cpu_us"],
        CALL: figures["device_us"],
        DONE: figures["done_ratio"],
    }[kind]
    text = {RATIO: "≤ {} ×", ABOVE: "≤ CPU + {} µs", CALL: "≤ {} µs", DONE: "done ≤ {} ×"}[kind].format(limit)
    return text, measured <= limit


def print_section(section: str, result: dict[str, Any]) -> bool:
    """Print a section as a Markdown table and return whether every bar is met."""
    all_met = True
    print(f"\n### {section} ({', '.join(f'{key}={value}' for key, value in result['options'].items())})\n")
    print("| case | CPU, µs | device, µs | ratio | done, µs a call | done, ratio | to reach | reached |")
    print("|---|---:|---:|---:|---:|---:|---|---|")
    for case in SECTIONS[section][1]:
        figures = result["cases"][case.name]
        bar, met = verdict(case, section, figures)
        all_met &= met
        row = [f"{figures[key]:.2f}" for key in ("cpu_us", "device_us", "ratio", "device_done_us", "done_ratio")]
        print(f"| {case.name} | {' | '.join(row)} | {bar} | {('yes' if met else 'no') if bar else ''} |")
    hop = result["hop"]
    print(f"\nFrom a call to its end, one-element add: {hop['call_to_done_us']:.1f} µs", end="; ")
    print(f"waiting for an idle device: {hop['wait_on_idle_us']:.1f} µs.")
    for name, figures in result["new_sizes"].items():
        above = figures["new_us"] - figures["known_us"]
        all_met &= above <= NEW_SIZE_BAR
        print(f"A size never seen, {name}: {figures['new_us']:.1f} µs, {above:.1f} more than a known one", end=" ")
        print(f"(to reach: {NEW_SIZE_BAR:.0f}).")
    return all_met


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="sim")
    parser.add_argument("--rounds", type=int, default=11, help="at least 9")
    # With more threads, two teams share the cores, and the figures would
    # measure the system's scheduler.
    parser.add_argument("--threads", type=int, default=1, help="threads of one operator, on both sides")
    parser.add_argument("--json", type=Path, default=RESULTS / "dispatch.json")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 9:
        parser.error("--rounds: at least 9, or the median says nothing")
    return options


def main() -> int:
    options = parse()
    if options.section:
        print(json.dumps(run_section(options.driver, options.section, options.rounds, options.threads)))
        return 0
    settings = {"driver": options.driver, "rounds": options.rounds, "threads": options.threads}
    results: dict[str, Any] = {"machine": machine(), **settings, "sections": {}}
    about = results["machine"]
    print(f"{about['cpu']}, {about['cores']} cores, {about['date']}, torch {about['torch']}", end=", ")
    print(f"{options.rounds} rounds, {options.threads} thread(s) an operator, load {about['load']:.1f}")
    all_met = True
    for section in SECTIONS:
        command = [sys.executable, __file__, "--section", section]
        command += [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results["sections"][section] = json.loads(done.stdout)
        all_met &= print_section(section, results["sections"][section])
    write(options.json, results)
    return 0 if all_met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
