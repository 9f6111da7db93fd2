# SPDX-License-Identifier: BSD-3-Clause
"""A peer that dies, a peer that hangs, or an abort, as argv[1] says. Rank 0 reports the result within time limits."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

from distributed.programs.start import RANK, meet, raises, start

how = sys.argv[1]
device = start(seconds=3 if how == "hang" else 60)
x = torch.ones(1 << 14, device=device)
dist.all_reduce(x)
backend = dist.group.WORLD._get_backend(device)


def end(work: dist.Work) -> None:
    """Wait for the results, which may raise in either line: streams wait where they can."""
    work.wait()
    torch.accelerator.synchronize()


torch.accelerator.synchronize()
meet("begin")
if RANK == 1:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "work":
        with raises(dist.DistBackendError, "sequence number 2, failed"):
            end(dist.all_reduce(x, async_op=True))
    if how in ("hang", "abort", "exit"):
        meet("over")
    os._exit(0)

began = time.monotonic()
if how in ("kill", "hang"):
    works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
    with raises(dist.DistBackendError, "rank 0 of group '0'", "all_reduce", "sequence number 2, failed") as first:
        end(works[0])
    with raises(dist.DistBackendError, "sequence number 2, failed"):  # again
        works[0].wait()
    with raises(dist.DistBackendError, "sequence number 4, did not complete", "sequence number 2, failed"):
        works[2].wait()
    with raises(dist.DistBackendError, "broadcast was not started", str(first.error)[:100]):
        dist.broadcast(x, 0)
    with raises(dist.DistBackendError, "send was not started"):
        dist.send(x, 1)
    future = works[1].get_future()
    with raises(dist.DistBackendError, "did not complete"):
        future.wait()
    assert torch.ones(3, device=device).sum().item() == 3  # the device itself goes on
    dist.destroy_process_group()
elif how == "abort":
    waits = dist.all_reduce(x, async_op=True)
    receives = dist.irecv(torch.empty(3, device=device), 1)
    threading.Timer(0.3, backend.abort).start()
    for work in (waits, receives):
        with raises(dist.DistBackendError, "did not complete", "it was aborted"):
            end(work)
    with raises(dist.DistBackendError, "it was aborted"):
        dist.all_reduce(x)
elif how == "work":  # of the device's own, before the collective
    bad = x.index_select(0, torch.tensor([1 << 20], device=device))
    with raises(IndexError):
        end(dist.all_reduce(bad, async_op=True))
    with raises(dist.DistBackendError, "all_reduce was not started", "out of range"):
        dist.all_reduce(x)
elif how == "exit":  # of the interpreter, with work under way that nobody ends
    dist.all_reduce(x, async_op=True)
    dist.irecv(torch.empty(3, device=device), 1)
assert time.monotonic() - began < 30, time.monotonic() - began
if how in ("hang", "abort", "exit"):
    meet("over")
if how == "work":
    os._exit(0)  # the peer waits for a collective that this rank has not joined
