# SPDX-License-Identifier: BSD-3-Clause
"""A training step of a small Llama on two GPUs, alone and sharded by FSDP2: the nv driver against torch's own CUDA.

Needs two GPUs, NCCL and a CUDA build of torch. Each side has two processes, and the sides take turns. Alone, each
process trains a copy without any collective. The last line relates the ratio of the sharded step to that of the step
alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from nccl import free_port, join
from torch.distributed.fsdp import fully_shard

from examples.llama_mesh import VOCABULARY, Llama, Shape, rotations

SHAPE = Shape(width=1024, layers=8, heads=16, key_heads=8, hidden=2816, length=1024)
BATCH = 8
WAYS = ("alone", "sharded")


def step(model: Llama, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, rotation: torch.Tensor) -> None:
    scores = model(tokens[:, :-1], rotation)
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def measure(rank: int, side: str, port: int, repeats: int, results: Any) -> None:
    device = join(side, rank, port)
    module = torch.get_device_module(device)
    torch.manual_seed(rank)
    tokens = torch.randint(VOCABULARY, (BATCH, SHAPE.length + 1), device=device)
    rotation = rotations(SHAPE, device).to(torch.bfloat16)
    for way in WAYS:
        torch.manual_seed(0)
        model = Llama(SHAPE).to(device=device, dtype=torch.bfloat16)
        if way == "sharded":
            for layer in model.layers:
                fully_shard(layer)
            fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        times = []
        for _ in range(5 + repeats):
            module.synchronize()
            begin = time.perf_counter()
            step(model, optimizer, tokens, rotation)
            module.synchronize()
            times.append(time.perf_counter() - begin)
        if rank == 0:
            results[side, way] = statistics.median(times[5:])
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    os.environ.setdefault("OUTBOARD_FALLBACK", "silent")
    rounds: dict[tuple[str, str], list[float]] = {}
    with multiprocessing.Manager() as manager:
        for number in range(options.rounds):
            for side in ("nv", "cuda") if number % 2 else ("cuda", "nv"):
                results = manager.dict()
                multiprocessing.spawn(measure, args=(side, free_port(), options.repeats, results), nprocs=2)
                for key, value in results.items():
                    rounds.setdefault(key, []).append(value)
    ratios = {}
    for way in WAYS:
        pairs = list(zip(rounds["nv", way], rounds["cuda", way], strict=True))
        ratios[way] = statistics.median(ours / theirs for ours, theirs in pairs)
        ours, theirs = (statistics.median(side) * 1e3 for side in zip(*pairs, strict=True))
        print(f"{way}: nv {ours:.2f} ms, cuda {theirs:.2f} ms, ratio {ratios[way]:.3f}", flush=True)
    print(f"ratio sharded over ratio alone: {ratios['sharded'] / ratios['alone']:.3f}")


if __name__ == "__main__":
    main()
