# SPDX-License-Identifier: BSD-3-Clause
"""NCCL of two GPUs through the nv driver against torch's own CUDA: all_reduce by size, in separate processes, in turns.

Needs two GPUs, NCCL and, for the ratios, a CUDA build of torch. Prints microseconds a call and the bus bandwidth.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

SIZES = {"4 KiB": 1 << 12, "256 KiB": 1 << 18, "4 MiB": 1 << 22, "64 MiB": 1 << 26, "256 MiB": 1 << 28}


def attach(side: str, rank: int) -> torch.device:
    if side == "cuda":
        torch.cuda.set_device(rank)
        return torch.device("cuda", rank)
    import torch_outboard

    torch_outboard.attach("nv")
    torch.accelerator.set_device_index(rank)
    return torch.device("nv", rank)


def join(side: str, rank: int, port: int) -> torch.device:
    """Make the group of both ranks, and return this rank's device."""
    device = attach(side, rank)
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    backend = "nccl" if side == "cuda" else "outboard"
    dist.init_process_group(backend, store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    return device


def measure(rank: int, side: str, port: int, repeats: int, results: Any) -> None:
    device = join(side, rank, port)
    module = torch.get_device_module(device)
    for name, size in SIZES.items():
        x = torch.ones(size // 4, device=device)
        calls = max(5, min(repeats, (1 << 31) // size))
        times = []
        for number in range(8):
            module.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(x)
            module.synchronize()
            if number > 1:
                times.append((time.perf_counter() - begin) / calls)
            x.fill_(1.0)
        if rank == 0:
            results[side, name] = statistics.median(times)
    if rank == 0 and side == "nv":
        import torch_outboard

        print({(row.op, row.provider) for row in torch_outboard.coverage() if row.op.startswith("c10d")})
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    os.environ.setdefault("OUTBOARD_FALLBACK", "silent")
    sides = ["nv", "cuda"] if torch.version.cuda else ["nv"]
    rounds: dict[tuple[str, str], list[float]] = {}
    with multiprocessing.Manager() as manager:
        for number in range(options.rounds):
            for side in sides if number % 2 else reversed(sides):
                results = manager.dict()
                multiprocessing.spawn(measure, args=(side, free_port(), options.repeats, results), nprocs=2)
                for key, value in results.items():
                    rounds.setdefault(key, []).append(value)
    for name, size in SIZES.items():
        texts = [name]
        for side in sides:
            spent = statistics.median(rounds[side, name])
            texts.append(f"{side} {spent * 1e6:.1f} us, {size / spent / 1e9:.1f} GB/s")
        if len(sides) == 2:
            pairs = zip(rounds["nv", name], rounds["cuda", name], strict=True)
            texts.append(f"time ratio {statistics.median(a / b for a, b in pairs):.3f}")
        print("; ".join(texts), flush=True)


if __name__ == "__main__":
    main()
