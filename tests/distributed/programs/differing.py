# SPDX-License-Identifier: BSD-3-Clause
"""Ranks whose calls differ: each rank raises, and names two ranks and their calls. No process ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from distributed.programs.start import RANK, raises, start

device = start()
Group = dist.ProcessGroup
MIN, SUM = dist.ReduceOp.MIN, dist.ReduceOp.SUM


def ones(*sizes: int, dtype: torch.dtype = torch.float32, where: torch.device | str = device) -> torch.Tensor:
    return torch.ones(sizes, dtype=dtype, device=where)


def in_other_order(group: Group) -> None:
    pair = [ones(4), ones(1000)]
    for tensor in reversed(pair) if RANK else pair:
        dist.all_reduce(tensor, group=group)


def in_lists(group: Group) -> None:
    with dist._coalescing_manager(group, device):
        for size in (8, 4) if RANK else (4, 8):
            dist.all_reduce(ones(size), group=group)


def by_splits(group: Group) -> None:
    splits = [1 + RANK, 3 - RANK]  # rank 0 expects 1 and 3 rows, and rank 1 sends it 2
    dist.all_to_all_single(ones(4), ones(4), splits, splits, group=group)


def of_tensors(group: Group) -> None:
    parts = [ones(2 + RANK) for _ in range(2)]
    dist.all_to_all([torch.empty_like(part) for part in parts], parts, group=group)


def gathered(group: Group) -> None:
    own = ones(4 + RANK)
    dist.all_gather([torch.empty_like(own) for _ in range(2)], own, group=group)


CASES: list[tuple[Callable[[Group], object], tuple[str, ...]]] = [
    (lambda group: dist.all_reduce(ones(4 + 4 * RANK), group=group), ("4 Float", "8 Float")),
    (lambda group: dist.all_reduce(ones(4 + 4 * RANK, where="cpu"), group=group), ("4 Float", "8 Float")),
    (lambda group: dist.all_reduce(ones(4, dtype=(torch.float, torch.double)[RANK]), group=group), ("4 Double",)),
    (lambda group: dist.broadcast(ones(4, dtype=(torch.float, torch.int32)[RANK]), 0, group=group), ("4 Int",)),
    (lambda group: dist.all_reduce(ones(4), (SUM, MIN)[RANK], group=group), ("all_reduce SUM", "all_reduce MIN")),
    (lambda group: dist.broadcast(ones(4), RANK, group=group), ("(root 0)", "(root 1)")),
    (
        lambda group: dist.broadcast(ones(4), 0, group=group) if RANK else dist.all_reduce(ones(4), group=group),
        ("rank 0 calls all_reduce", "rank 1 calls broadcast"),
    ),
    (
        lambda group: dist.barrier(group) if RANK else dist.all_reduce(ones(4), group=group),
        ("rank 1 calls barrier",),
    ),
    (in_other_order, ("of 4 Float", "of 1000 Float")),
    (in_lists, ("4 Float, 8 Float", "8 Float, 4 Float")),
    (gathered, ("all_gather of 4 Float", "all_gather of 5 Float")),
    (by_splits, ("sends 12 bytes", "expects 8")),
    (of_tensors, ("sends 8 bytes", "expects 12")),
]

for call, words in CASES:
    group = dist.new_group(timeout=timedelta(seconds=30))
    with raises(dist.DistBackendError, "differ", *words):
        call(group)
        torch.accelerator.synchronize()
    with raises(dist.DistBackendError, "the group has failed", "differ"):
        call(group)
        torch.accelerator.synchronize()

# A send and a recv of other sizes do not meet.
for size in (10, 1000):
    group = dist.new_group(timeout=timedelta(seconds=1))
    tensor = ones(100 if RANK == 0 else size)
    with raises(dist.DistBackendError, "failed") as caught:
        dist.recv(tensor, 0, group=group) if RANK else dist.send(tensor, 1, group=group)
        torch.accelerator.synchronize()
    # The rank whose time is over first closes the connection.
    assert "its tensor's size differs" in str(caught.error) or "closed by peer" in str(caught.error), caught.error

# Tags of 16 bits and more, and messages that wait for theirs.
tags = [0, 1, 65535, 65536, (1 << 30) - 1]
tensors = [torch.full((4 + i,), float(tag % 97), device=device) for i, tag in enumerate(tags)]
if RANK == 0:
    works = [dist.isend(tensor, 1, tag=tag) for tensor, tag in zip(tensors, tags, strict=True)]
    for work in works:
        work.wait()
else:
    for tensor, tag in reversed([*zip(tensors, tags, strict=True)]):
        received = torch.empty_like(tensor)
        dist.recv(received, 0, tag=tag)
        assert torch.equal(received.cpu(), tensor.cpu())
for tag in (-1, 1 << 30):
    with raises(ValueError, "takes a tag from 0 to 1073741823"):
        dist.send(tensors[0], 1 - RANK, tag=tag)
dist.barrier()
dist.destroy_process_group()
