# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of two processes on the simulated device against Gloo on CPU tensors, in turns in one run.

Prints all_reduce until its result is there, the host's time for an all_reduce with what follows it, and how much of
a DDP step's communication its backward hides. Writes results/distributed.json.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import statistics
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from _results import RESULTS, about, write
from torch import nn

import torch_outboard

SIZES = {"4 KiB": (1 << 12, 1.3), "1 MiB": (1 << 20, 1.3), "16 MiB": (1 << 24, 1.05)}
HOST_BAR = 0.5  # milliseconds


def seconds(call: Callable[[], object], repeats: int) -> float:
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median. It is that of order statistics, which assumes no distribution."""
    ordered = sorted(values)
    reach = 1.96 * math.sqrt(len(ordered)) / 2
    low, high = math.floor(len(ordered) / 2 - reach), math.ceil(len(ordered) / 2 + reach)
    return ordered[max(low, 0)], ordered[min(high, len(ordered) - 1)]


def paired(
    first: Callable[[], object], second: Callable[[], object], repeats: int, rounds: int
) -> tuple[float, float, list[float]]:
    """Return the medians of both in seconds, and the rounds' ratios of the second to the first."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        for place in order:
            spent = seconds((first, second)[place], repeats)
            if number:  # the first round warms up
                times[place].append(spent)
    ratios = [b / a for a, b in zip(*times, strict=True)]
    return statistics.median(times[0]), statistics.median(times[1]), ratios


def all_reduces(device: torch.device, gloo: dist.ProcessGroup, rounds: int) -> list[dict[str, object]]:
    rows = []
    for name, (size, bar) in SIZES.items():
        on_cpu = torch.ones(size // 4)
        on_device = on_cpu.to(device)

        def reduce_on_device(tensor: torch.Tensor = on_device) -> None:
            dist.all_reduce(tensor)
            torch.accelerator.synchronize()

        def reduce_on_cpu(tensor: torch.Tensor = on_cpu) -> None:
            dist.all_reduce(tensor, group=gloo)

        repeats = max(1, min(50, (1 << 23) // size))
        cpu, own, ratios = paired(reduce_on_cpu, reduce_on_device, repeats, rounds)
        rows.append({"case": f"all_reduce {name}", "gloo_us": cpu * 1e6, "device_us": own * 1e6,
                     "ratio": statistics.median(ratios), "interval": interval(ratios), "bar": bar})  # fmt: skip
    return rows


def host_time(device: torch.device, rounds: int) -> dict[str, object]:
    """Return how long the host needs for all_reduce, wait and one operator, and how long until they are done."""
    x = torch.ones(1 << 21, device=device)
    y = torch.ones(1 << 10, device=device)
    spent, done = [], []
    for number in range(rounds + 2):
        torch.accelerator.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(x, async_op=True).wait()
        y.mul_(1.0)
        middle = time.perf_counter()
        torch.accelerator.synchronize()
        if number > 1:
            spent.append(middle - begin)
            done.append(time.perf_counter() - begin)
    low, high = interval(spent)
    return {"case": "host, all_reduce 8 MiB + wait + mul", "host_ms": statistics.median(spent) * 1e3,
            "interval_ms": (low * 1e3, high * 1e3), "done_ms": statistics.median(done) * 1e3,
            "bar_ms": HOST_BAR}  # fmt: skip


def overlap(device: torch.device, rounds: int) -> dict[str, object]:
    """Compare a step of DDP with one that computes first and then exchanges the same gradients."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(768, 768), nn.ReLU())]
    plain = nn.Sequential(*layers).to(device)
    wrapped = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=3)
    x = torch.randn(256, 768, device=device)

    def step(model: nn.Module) -> None:
        model.zero_grad()
        model(x).sum().backward()

    def apart() -> None:
        step(plain)
        torch.accelerator.synchronize()
        gradients = [parameter.grad for parameter in plain.parameters()]
        for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
            work.wait()
        torch.accelerator.synchronize()

    def together() -> None:
        step(wrapped)
        torch.accelerator.synchronize()

    def alone() -> None:
        step(plain)
        torch.accelerator.synchronize()

    one_after_the_other, ddp, ratios = paired(apart, together, 1, rounds)
    compute = statistics.median(seconds(alone, 1) for _ in range(rounds))
    return {"case": "DDP step, 8 layers of 768", "apart_ms": one_after_the_other * 1e3, "ddp_ms": ddp * 1e3,
            "compute_ms": compute * 1e3, "ratio": statistics.median(ratios),
            "interval": interval(ratios)}  # fmt: skip


def shown(name: str, value: object) -> str:
    if isinstance(value, tuple):
        return f"{name}={value[0]:.3g}..{value[1]:.3g}"
    return f"{name}={value:.3g}" if isinstance(value, float) else str(value)


def run(rank: int, port: int, rounds: int) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    torch_outboard.attach("sim")
    device = torch.device("sim", rank)
    torch.accelerator.set_device_index(rank)
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group(store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    gloo = dist.new_group(backend="gloo")
    rows = [*all_reduces(device, gloo, rounds), host_time(device, rounds), overlap(device, rounds)]
    if rank == 0:
        for row in rows:
            print("  ".join(shown(name, value) for name, value in row.items()), flush=True)
        properties = torch.get_device_module(device).get_device_properties(device)
        write(RESULTS / "distributed.json", {"about": about(properties), "rows": rows})
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(run, args=(port, parser.parse_args().rounds), nprocs=2)


if __name__ == "__main__":
    main()
