# SPDX-License-Identifier: BSD-3-Clause
"""Measure streams, events, guards and waits on an attached device, their growth, and the cost of a profile.

The compared sides alternate in one process, and each figure is the median over the rounds. Each section attaches the
driver with its own options, and is therefore a child process. gpu.py compares the same calls with torch's CUDA device,
if there is a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from _results import RESULTS, write
from dispatch import machine


@dataclass(frozen=True)
class Case:
    """One statement, and the nanoseconds of torch's CUDA device for it on an H200."""

    name: str
    statement: str
    cuda_ns: float | None
    cpu: str = ""  # the same call of torch.cpu, if there is one
    loops: int = 5000


CALLS = [
    Case("set_stream", "set_stream(stream)", 485),
    Case("current_stream", "module.current_stream(0)", 3350, "cpu.current_stream()"),
    Case("raw current stream", "raw_stream(0)", 85),
    Case("event record", "event.record(stream)", 656),
    Case("event query", "event.query()", 226),
    Case("stream waits for event", "stream.wait_event(event)", 646),
    Case("new pooled stream", "Stream(device)", 565),
    Case("enter and leave a device guard", "with guard: pass", 346),
    Case("the same, with making it", "with module.device(0): pass", None),
    Case("enter and leave a stream", "with module.stream(stream): pass", None, "with cpu.stream(cpu_stream): pass"),
    Case("current device", "module.current_device()", None, "cpu.current_device()"),
    Case("synchronize an idle device", "module.synchronize()", 5057, "cpu.synchronize()"),
    Case("synchronize an idle stream", "stream.synchronize()", None),
]

# At most this much more for each call with 10,000 events instead of
# 10, or 256 streams instead of 4.
GROWTH_BAR = 1.2
# At most this ratio of a step with a profile to one without.
PROFILE_ON_BAR, PROFILE_OFF_BAR = 1.15, 1.03
OFF_MEASURE = "off, after a profile against before (without one: {:.3f})"
OFF_PROCESSES = 7  # of each kind
DIGITS, SMALL = "CNN on 64 digits", "two linear layers, 16 x 32"


def alternate(timers: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return the samples of each timer after a warm-up round; the order alternates between rounds."""
    samples: dict[str, list[float]] = {name: [] for name in timers}
    for number in range(-1, rounds):
        for name in sorted(timers, reverse=bool(number % 2)):
            seconds = timers[name]()
            if number >= 0:
                samples[name].append(seconds)
    return samples


def median_ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def measure_calls(driver: str, rounds: int) -> dict[str, Any]:
    import torch

    from torch_outboard import _C

    device = torch.device(driver, 0)
    module = torch.get_device_module(device)
    stream = torch.Stream(device)
    event = torch.Event(device)
    event.record(stream)
    module.synchronize()
    names = {
        "module": module,
        "device": device,
        "stream": stream,
        "event": event,
        "guard": module.device(0),
        "set_stream": module.set_stream,
        "Stream": torch.Stream,
        "raw_stream": _C.current_raw_stream,
        "cpu": torch.cpu,
        "cpu_stream": torch.cpu.current_stream(),
    }
    results = {}
    for case in CALLS:
        timers = {"device": timeit.Timer(case.statement, globals=names)}
        if case.cpu:
            timers["cpu"] = timeit.Timer(case.cpu, globals=names)

        def sample(timer: timeit.Timer, loops: int = case.loops) -> float:
            module.synchronize()
            return timer.timeit(loops) / loops

        samples = alternate({name: partial(sample, timer) for name, timer in timers.items()}, rounds)
        results[case.name] = {f"{name}_ns": 1e9 * statistics.median(values) for name, values in samples.items()}
    return results


def measure_growth(driver: str, rounds: int) -> dict[str, Any]:
    """Time ten events with 10 and with 10,000 live events, and calls that rotate over 4 and over 256 streams."""
    import torch

    module = torch.get_device_module(torch.device(driver))
    events = [torch.Event(torch.device(driver, 0)) for _ in range(10)]
    # As many streams as the pools have: 32 of each of two priorities, on four devices.
    streams = [
        torch.Stream(torch.device(driver, device), priority=priority)
        for _ in range(32)
        for priority in (0, -1)
        for device in range(4)
    ]
    assert len({(stream.device_index, stream.stream_id) for stream in streams}) == 256
    of_streams = {4: streams[:4], 256: streams}
    marks = {count: [torch.Event(stream.device) for stream in some] for count, some in of_streams.items()}
    for some in of_streams:
        for mark, stream in zip(marks[some], of_streams[some], strict=True):
            mark.record(stream)
    calls = 10_240

    def run(call: Callable[..., object], *lists: list[Any]) -> float:
        repeats = range(calls // len(lists[0]))
        for device in range(4):
            module.synchronize(device)
        start = timeit.default_timer()
        for _ in repeats:
            for arguments in zip(*lists, strict=True):
                call(*arguments)
        return (timeit.default_timer() - start) / (len(repeats) * len(lists[0]))

    stream = streams[0]

    def among(live: int, call: Callable[[Any], object]) -> float:
        others = [torch.Event(torch.device(driver, 0)) for _ in range(live - len(events))]
        for event in others:
            event.record(stream)
        return run(call, events)

    cases: dict[str, tuple[int, int, Callable[[int], float]]] = {
        "record, 10 and 10,000 live events": (10, 10_000, lambda n: among(n, lambda e: e.record(stream))),
        "query, 10 and 10,000 live events": (10, 10_000, lambda n: among(n, lambda e: e.query())),
        "wait_event, 10 and 10,000 live events": (10, 10_000, lambda n: among(n, stream.wait_event)),
        "set_stream, 4 and 256 streams": (4, 256, lambda n: run(module.set_stream, of_streams[n])),
        "record, 4 and 256 streams": (4, 256, lambda n: run(lambda e, s: e.record(s), marks[n], of_streams[n])),
        "query of the stream, 4 and 256 streams": (4, 256, lambda n: run(lambda s: s.query(), of_streams[n])),
    }
    results = {}
    for name, (few, many, measure) in cases.items():
        samples = alternate({"few": partial(measure, few), "many": partial(measure, many)}, rounds)
        results[name] = {f"{size}_ns": 1e9 * statistics.median(values) for size, values in samples.items()}
        results[name]["ratio"] = median_ratio(samples["many"], samples["few"])
    return results


def steps_of(driver: str) -> dict[str, tuple[Callable[[], None], int]]:
    """Return a training step of moderate size and a small one that is only overhead, with their repetitions."""
    import torch
    from torch import nn

    torch.manual_seed(0)

    def make(model: nn.Module, inputs: torch.Tensor, classes: int) -> Callable[[], None]:
        model, inputs = model.to(driver), inputs.to(driver)
        labels = torch.arange(len(inputs)).remainder(classes).to(driver)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()

        return step

    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(2048, 10),
    )  # fmt: skip
    small = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return {
        DIGITS: (make(network, torch.randn(64, 1, 8, 8), 10), 10),
        SMALL: (make(small, torch.randn(16, 32), 10), 50),
    }


def measure_profiler(driver: str, rounds: int) -> dict[str, Any]:
    """Time steps until their work is done: without a profile, with the CPU's profile, and with the device's too."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    module = torch.get_device_module(torch.device(driver))
    kinds = {
        "off": None,
        "cpu": [ProfilerActivity.CPU],
        "on": [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1],
    }

    def timed(step: Callable[[], None], loops: int) -> float:
        step()
        module.synchronize()
        start = timeit.default_timer()
        for _ in range(loops):
            step()
        module.synchronize()
        return (timeit.default_timer() - start) / loops

    def sample(kind: str, step: Callable[[], None], loops: int) -> float:
        activities = kinds[kind]
        if activities is None:
            return timed(step, loops)
        with profile(activities=activities):
            return timed(step, loops)

    results = {}
    for name, (step, loops) in steps_of(driver).items():
        samples = alternate({kind: partial(sample, kind, step, loops) for kind in kinds}, rounds)
        results[name] = {f"{kind}_us": 1e6 * statistics.median(values) for kind, values in samples.items()}
        results[name]["on_ratio"] = median_ratio(samples["on"], samples["off"])
        results[name]["device_ratio"] = median_ratio(samples["on"], samples["cpu"])
    return results


def change_of_steps(driver: str, is_profiled: bool, rounds: int) -> float:
    """Return the ratio of a step's times after and before a profile, or after and before the same steps without one."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    module = torch.get_device_module(torch.device(driver))
    step, loops = steps_of(driver)[DIGITS]

    def sample() -> float:
        module.synchronize()
        start = timeit.default_timer()
        for _ in range(loops):
            step()
        module.synchronize()
        return (timeit.default_timer() - start) / loops

    sample()
    before = [sample() for _ in range(rounds)]
    activities = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    with profile(activities=activities) if is_profiled else contextlib.nullcontext():
        sample()
    after = [sample() for _ in range(rounds)]
    return statistics.median(after) / statistics.median(before)


def measure_off(driver: str, rounds: int) -> dict[str, float]:
    """Return the slowdown that a profile leaves behind, and the change in the same time without a profile.

    Each process is compared with itself: two equal processes differ by several hundredths, because of their memory
    layout.
    """
    changes: dict[str, list[float]] = {"once": [], "never": []}
    for _ in range(OFF_PROCESSES):
        for kind, figures in changes.items():
            command = [sys.executable, __file__, "--change", kind, "--driver", driver, "--rounds", str(rounds)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            figures.append(float(done.stdout.splitlines()[-1]))
    return {"off_ratio": statistics.median(changes["once"]), "control_ratio": statistics.median(changes["never"])}


SECTIONS: dict[str, tuple[dict[str, str], Callable[[str, int], dict[str, Any]]]] = {
    "calls": ({}, measure_calls),
    "growth": ({"devices": "4"}, measure_growth),
    "profiler": ({}, measure_profiler),
}


def run_section(driver: str, section: str, rounds: int) -> dict[str, Any]:
    import torch

    import torch_outboard

    torch.set_num_threads(1)
    options, measure = SECTIONS[section]
    torch_outboard.attach(driver, **options)
    return measure(driver, rounds)


def yes(is_met: bool) -> str:
    return "yes" if is_met else "no"


def print_calls(result: dict[str, Any]) -> bool:
    print("\n### Calls\n\n| call | device, ns | torch.cpu, ns | to reach | reached |\n|---|---:|---:|---|---|")
    all_met = True
    for case in CALLS:
        figures = result[case.name]
        cpu = f"{figures['cpu_ns']:.0f}" if "cpu_ns" in figures else ""
        bar, met = "", ""
        if case.cuda_ns is not None:
            is_met = figures["device_ns"] <= case.cuda_ns
            all_met &= is_met
            bar, met = f"≤ {case.cuda_ns:.0f}", yes(is_met)
        print(f"| {case.name} | {figures['device_ns']:.0f} | {cpu} | {bar} | {met} |")
    return all_met


def print_growth(result: dict[str, Any]) -> bool:
    print("\n### Growth\n\n| call | few, ns | many, ns | ratio | to reach | reached |\n|---|---:|---:|---:|---|---|")
    all_met = True
    for name, figures in result.items():
        is_met = figures["ratio"] <= GROWTH_BAR
        all_met &= is_met
        row = f"{figures['few_ns']:.0f} | {figures['many_ns']:.0f} | {figures['ratio']:.2f}"
        print(f"| {name} | {row} | ≤ {GROWTH_BAR} × | {yes(is_met)} |")
    return all_met


def print_profiler(result: dict[str, Any]) -> bool:
    print("\n### Profiler\n\n| step | off, µs | CPU, µs | CPU and device, µs | measure | ratio | to reach | reached |")
    print("|---|---:|---:|---:|---|---:|---|---|")
    all_met = True
    for name, figures in result.items():
        times = " | ".join(f"{figures[f'{kind}_us']:.0f}" for kind in ("off", "cpu", "on"))
        measures = [("with the device against CPU alone", "device_ratio", PROFILE_ON_BAR)]
        if "off_ratio" in figures:
            measures.append(("on against off", "on_ratio", PROFILE_ON_BAR))
            measures.append((OFF_MEASURE.format(figures["control_ratio"]), "off_ratio", PROFILE_OFF_BAR))
        for measure, key, bar in measures:
            is_met = figures[key] <= bar
            all_met &= is_met
            print(f"| {name} | {times} | {measure} | {figures[key]:.3f} | ≤ {bar} × | {yes(is_met)} |")
    return all_met


PRINTERS = {"calls": print_calls, "growth": print_growth, "profiler": print_profiler}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="sim")
    parser.add_argument("--rounds", type=int, default=15, help="at least 9")
    parser.add_argument("--json", type=Path, default=RESULTS / "runtime.json")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--change", choices=("never", "once"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 9:
        parser.error("--rounds: at least 9, or the median says nothing")
    return options


def main() -> int:
    options = parse()
    if options.change:
        import torch

        import torch_outboard

        torch.set_num_threads(1)
        torch_outboard.attach(options.driver)
        print(change_of_steps(options.driver, options.change == "once", options.rounds))
        return 0
    if options.section:
        print(json.dumps(run_section(options.driver, options.section, options.rounds)))
        return 0
    results: dict[str, Any] = {"machine": machine(), "driver": options.driver, "rounds": options.rounds}
    about = results["machine"]
    print(f"{about['cpu']}, {about['cores']} cores, {about['date']}, torch {about['torch']}", end=", ")
    print(f"{options.rounds} rounds, load {about['load']:.1f}")
    all_met = True
    for section, print_section in PRINTERS.items():
        command = [sys.executable, __file__, "--section", section, "--driver", options.driver]
        command += ["--rounds", str(options.rounds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        # The profiler may write lines of its own before.
        results[section] = json.loads(done.stdout.splitlines()[-1])
        if section == "profiler":
            results[section][DIGITS] |= measure_off(options.driver, options.rounds)
        all_met &= print_section(results[section])
    write(options.json, results)
    return 0 if all_met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
