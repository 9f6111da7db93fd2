# SPDX-License-Identifier: BSD-3-Clause
"""Measures allocate and free from Python, against `torch.empty` on the CPU in the same process, and fragmentation.

    python benchmarks/allocator.py --driver NAME

Both sides take turns; each figure is the median over the rounds. The C++ path alone is measured by
benchmarks/native/bench_allocator.cpp.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time

import torch

import torch_outboard

MIB = 1 << 20
LIVE = 64


def churn_sizes(count: int, seed: int) -> list[int]:
    """Gives sizes from 1 B to 4 MiB, each power of two as likely as the next."""
    draw = random.Random(seed)
    return [int(2 ** draw.uniform(0, 22)) for _ in range(count)]


def time_churn(device: torch.device, sizes: list[int], victims: list[int]) -> float:
    """Gives the nanoseconds of an allocation and a free, with 64 blocks live and the one to go drawn at random."""
    empty, uint8 = torch.empty, torch.uint8
    live = [empty(size, dtype=uint8, device=device) for size in sizes[:LIVE]]
    start = time.perf_counter_ns()
    for size, victim in zip(sizes, victims, strict=True):
        live[victim] = empty(size, dtype=uint8, device=device)
    return (time.perf_counter_ns() - start) / len(sizes)


Trace = list[tuple[int, int]]  # (number of a tensor, its bytes, or -1: it is freed)


def training_trace(length_of: list[int], keeps: bool = False) -> Trace:
    """Gives the allocations of a transformer's training steps, of the sequence lengths given.

    Activations live until the backward pass reaches their layer, gradients until the step's end; a state of each
    parameter stays for good, and with `keeps` a tensor of each step, as in a cache of keys and values.
    """
    trace: Trace = []
    number = 0

    def allocate(size: int) -> int:
        nonlocal number
        number += 1
        trace.append((number, size))
        return number

    hidden, layers = 512, 6
    for _ in range(layers):
        allocate(hidden * hidden * 4 * 12)
    for length in length_of:
        activations = []
        for _ in range(layers):
            layer = [allocate(length * hidden * 4 * scale) for scale in (1, 3, 1, 4, 4, 1)]
            scores = allocate(length * length * 4 * 8)
            trace.append((scores, -1))
            if keeps and len(activations) == 2:
                allocate(length * hidden * 4 * 4)
            activations.append(layer)
        gradients = []
        for layer in reversed(activations):
            flowing = allocate(length * hidden * 4)
            gradients.append(allocate(hidden * hidden * 4 * 12))
            for tensor in reversed(layer):
                trace.append((tensor, -1))
            trace.append((flowing, -1))
        for tensor in gradients:
            trace.append((tensor, -1))
    return trace


def time_trace(device: torch.device, trace: Trace) -> float:
    """Gives the nanoseconds of an entry of the trace."""
    empty, uint8 = torch.empty, torch.uint8
    live = {}
    start = time.perf_counter_ns()
    for number, size in trace:
        if size < 0:
            del live[number]
        else:
            live[number] = empty(size, dtype=uint8, device=device)
    return (time.perf_counter_ns() - start) / len(trace)


ANY_LENGTH = random.Random(1).sample(range(64, 512), 24)
TRACES = {
    "one length": training_trace([256] * 6),
    "three lengths": training_trace([128, 512, 256] * 3),
    "any length": training_trace(ANY_LENGTH),
    "any, some kept": training_trace(ANY_LENGTH, keeps=True),
}


def fragmentation(name: str, device: torch.device, trace: Trace) -> None:
    """Prints peak reserved over peak allocated, and what stays stuck, with both kinds of segments."""
    module = torch.get_device_module(device)
    line = f"{name:16}"
    for is_expandable in (False, True):
        torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{is_expandable}")
        module.empty_cache()
        module.reset_peak_memory_stats(device)
        with module.stream(torch.Stream(device)):
            live = {}
            for number, size in trace:
                if size < 0:
                    del live[number]
                else:
                    live[number] = torch.empty(size, dtype=torch.uint8, device=device)
            ratio = module.max_memory_reserved(device) / module.max_memory_allocated(device)
            module.empty_cache()
            stuck = module.memory_stats(device)["inactive_split_bytes.all.current"] / MIB
        kind = "expandable" if is_expandable else "fixed"
        line += f"  {kind}: reserved/allocated {ratio:.3f}, stuck {stuck:6.1f} MiB"
        del live
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", default="sim", help="whose memory")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch_outboard.attach(arguments.driver)
    ours, cpu = torch.device(arguments.driver, 0), torch.device("cpu")
    sizes = churn_sizes(20_000, 1)
    draw = random.Random(2)
    victims = [draw.randrange(LIVE) for _ in sizes]
    trace = TRACES["three lengths"]
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, measure in (
        ("allocate + free, 1 B to 4 MiB, 64 live", lambda device: time_churn(device, sizes, victims)),
        ("replay of training steps, an entry", lambda device: time_trace(device, trace)),
    ):
        figures: dict[torch.device, list[float]] = {ours: [], cpu: []}
        for _ in range(arguments.rounds):
            for device in figures:
                figures[device].append(measure(device))
        one, other = (statistics.median(figures[device]) for device in (ours, cpu))
        print(f"{name:40} {arguments.driver} {one:7.0f} ns, cpu {other:7.0f} ns, ratio {one / other:.2f} (bar 1.00)")
    for name, steps in TRACES.items():
        fragmentation(name, ours, steps)


if __name__ == "__main__":
    main()
