# SPDX-License-Identifier: BSD-3-Clause
"""Measure allocate and free from Python, against `torch.empty` on the CPU in the same process, and fragmentation.

    python benchmarks/allocator.py --driver NAME

Both sides alternate; each figure is the median over the rounds. The fragmentation is measured on recorded training runs
(traces/). One run keeps some of its allocations, as a cache does. The C++ path alone is compiled and measured too,
which takes half a minute; `--no-native` skips it.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from _results import RESULTS, write
from _traces import NAMES, SimpleAllocator, load

import torch_outboard

MIB = 1 << 20
LIVE_BLOCKS = 64
ROOT = Path(__file__).resolve().parent.parent


def churn_sizes(count: int, seed: int) -> list[int]:
    """Return sizes from 1 B to 4 MiB, uniform in their logarithm."""
    draw = random.Random(seed)
    return [int(2 ** draw.uniform(0, 22)) for _ in range(count)]


def time_churn(device: torch.device, sizes: list[int], victims: list[int]) -> float:
    """Return the nanoseconds of an allocation and a free, with 64 live blocks of which a random one is replaced."""
    empty, uint8 = torch.empty, torch.uint8
    live = [empty(size, dtype=uint8, device=device) for size in sizes[:LIVE_BLOCKS]]
    start = time.perf_counter_ns()
    for size, victim in zip(sizes, victims, strict=True):
        live[victim] = empty(size, dtype=uint8, device=device)
    return (time.perf_counter_ns() - start) / len(sizes)


def time_trace(device: torch.device, trace: list[int]) -> float:
    """Return the mean nanoseconds of a trace's entry."""
    empty, uint8 = torch.empty, torch.uint8
    live = {}
    count = 0
    start = time.perf_counter_ns()
    for number in trace:
        if number < 0:
            del live[-number]
        else:
            count += 1
            live[count] = empty(number, dtype=uint8, device=device)
    return (time.perf_counter_ns() - start) / len(trace)


def trace_without_some_frees(trace: list[int], every: int) -> list[int]:
    """Return the trace without every `every`-th free, as if a part of the activations were cached for good."""
    frees = (number for number, entry in enumerate(trace) if entry < 0)
    kept = set(list(frees)[::every])
    return [entry for number, entry in enumerate(trace) if number not in kept]


def replay(device: torch.device, trace: list[int], is_expandable: bool) -> tuple[float, float, float]:
    """Return peak reserved over peak allocated, and the MiB in holes at the end, before and after `empty_cache`.

    A hole is free memory beside live memory in the same segment: inactive_split_bytes.
    """
    module = torch.get_device_module(device)
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{is_expandable}")
    module.empty_cache()
    module.reset_peak_memory_stats(device)

    def holes() -> float:
        return module.memory_stats(device)["inactive_split_bytes.all.current"] / MIB

    live = {}
    count = 0
    with module.stream(torch.Stream(device)):
        for number in trace:
            if number < 0:
                del live[-number]
            else:
                count += 1
                live[count] = torch.empty(number, dtype=torch.uint8, device=device)
        ratio = module.max_memory_reserved(device) / module.max_memory_allocated(device)
        before = holes()
        module.empty_cache()
        after = holes()
        live.clear()
        module.empty_cache()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    return ratio, before, after


def fragmentation(device: torch.device) -> dict[str, list[tuple[float, float, float]]]:
    """Print the memory that each trace needs with both kinds of segments, and with a simple allocator."""
    print(f"\n{'peak reserved / peak allocated':32} {'fixed':>8} {'expandable':>11} {'simple':>8}")
    traces = {name: load(name) for name in NAMES}
    results = {}
    for name, trace in traces.items():
        results[name] = [replay(device, trace, is_expandable) for is_expandable in (False, True)]
        fixed, expandable = results[name]
        print(f"{name:32} {fixed[0]:8.3f} {expandable[0]:11.3f} {SimpleAllocator().replay(trace):8.3f}")
    name = NAMES[-1]
    results[f"{name}, some kept"] = [
        replay(device, trace_without_some_frees(traces[name], 40), kind) for kind in (False, True)
    ]
    print(f"\n{'MiB in holes at the end':48} {'fixed':>8} {'expandable':>11} {'ratio':>8}")
    for name, ((_, *fixed), (_, *expandable)) in results.items():
        for when, fixed_cost, expandable_cost in zip(("", " (cache emptied)"), fixed, expandable, strict=True):
            print(f"{name + when:48} {fixed_cost:8.1f} {expandable_cost:11.1f} {expandable_cost / fixed_cost:8.2f}")
    print("(bar of the last one: 0.50; mapped memory that is free counts as a hole until the cache is emptied)")
    return results


def native() -> str:
    """Compile and run native/bench_allocator.cpp."""
    sys.path.insert(0, str(ROOT / "tests"))
    from native import allocator_program

    with tempfile.TemporaryDirectory() as folder:
        source = ROOT / "benchmarks" / "native" / "bench_allocator.cpp"
        program = allocator_program.build(source, Path(folder), "-O3", "-DNDEBUG")
        return allocator_program.run([str(program)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", default="sim", help="whose memory")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--native", action=argparse.BooleanOptionalAction, default=True, help="the C++ path too")
    arguments = parser.parse_args()
    torch_outboard.attach(arguments.driver)
    ours, cpu = torch.device(arguments.driver, 0), torch.device("cpu")
    sizes = churn_sizes(20_000, 1)
    draw = random.Random(2)
    victims = [draw.randrange(LIVE_BLOCKS) for _ in sizes]
    trace = load("transformer")
    figures_of: dict[str, object] = {"torch": torch.__version__, "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, measure in (
        ("allocate + free, 1 B to 4 MiB, 64 live", lambda device: time_churn(device, sizes, victims)),
        ("replay of a recorded training, an entry", lambda device: time_trace(device, trace)),
    ):
        figures: dict[torch.device, list[float]] = {ours: [], cpu: []}
        for _ in range(arguments.rounds):
            for device in figures:
                figures[device].append(measure(device))
        own, host = (statistics.median(figures[device]) for device in (ours, cpu))
        print(f"{name:40} {arguments.driver} {own:7.0f} ns, cpu {host:7.0f} ns, ratio {own / host:.2f} (bar 1.00)")
        figures_of[name] = {arguments.driver: own, "cpu": host}
    figures_of["fragmentation"] = fragmentation(ours)
    if arguments.native:
        figures_of["native"] = native()
        print(f"\n{figures_of['native']}")
    write(RESULTS / "allocator.json", figures_of)


if __name__ == "__main__":
    main()
