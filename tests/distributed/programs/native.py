# SPDX-License-Identifier: BSD-3-Clause
"""The driver's own collectives when something is wrong, as argv[1] says. Each case is bounded and names its cause."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import torch_outboard
from distributed.programs.start import RANK, meet, raises, start
from torch_outboard import _C

how = sys.argv[1]
# Where processors exchange through memory, a peer that has died is one that never comes.
device = start(seconds=3 if how in ("hang", "late", "kill", "leave") else 30)
module = torch.get_device_module(device)
x = torch.full((1 << 12,), RANK + 1.0, device=device)
began = time.monotonic()


def end(work: dist.Work) -> None:
    work.wait()
    torch.accelerator.synchronize()


def providers() -> set[str]:
    return {row.provider for row in torch_outboard.coverage() if row.op.startswith("c10d::")}


if how == "works":
    dist.all_reduce(x)
    assert x[0].item() == 3.0 and providers() == {"native"}
    received = torch.empty(1 << 12, device=device)

    def exchange() -> None:
        """Begin with the send on one rank, and with the receive on the other."""
        calls = [lambda: dist.isend(x, 1 - RANK), lambda: dist.irecv(received, 1 - RANK)]
        for work in [call() for call in calls[:: 1 - 2 * RANK]]:
            work.wait()
        assert received[7].item() == 3.0
        received.zero_()

    exchange()
    # A call that raises ends its batch, which torch does not: what follows is not kept for the end.
    dist.group.WORLD._start_coalescing(device)
    dist.isend(x, 1 - RANK)  # dropped, on both ranks
    with raises(RuntimeError, "single memory location"):
        dist.irecv(received[:1].expand(4), 1 - RANK)
    exchange()
    operations = [dist.P2POp(dist.isend, x, 1 - RANK), dist.P2POp(dist.irecv, received, 1 - RANK)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received[7].item() == 3.0
    if _C.entries()["graph_capture_begin"]:
        for name, call in (("all_reduce", lambda: dist.all_reduce(x)), ("send", lambda: dist.isend(x, 1 - RANK))):
            words = f"{name}, which the driver's own capture does not support, cannot be captured"
            with raises(torch_outboard.CaptureError, words), module.graph(module.Graph()):
                call()
        exchange()  # the group lives on
    with raises(torch_outboard.NotSupportedError, "recv from any rank", "pass the source rank"):
        dist.recv(received)
    foreign = torch.ones(3, device=torch.device(device.type, (device.index + 1) % module.device_count()))
    with raises(torch_outboard.NotSupportedError, "a rank uses one device per group"):
        dist.all_reduce(foreign)
    works = [dist.all_reduce(x, async_op=True) for _ in range(20)]
    dist.destroy_process_group()  # with work under way
    torch.accelerator.synchronize()
    assert x[0].item() == 3.0 * 2**20 and all(work.is_completed() for work in works)
elif how == "differ":  # each rank hears of it: from its own call, or, where it only sends, from its next
    calls = {
        "of 8 float32": lambda: dist.all_reduce(torch.ones(4 + 4 * RANK, device=device), group=group),
        "of 4 float64": lambda: dist.all_reduce(
            torch.ones(4, dtype=(torch.float, torch.double)[RANK], device=device), group=group
        ),
        "all_reduce MIN": lambda: dist.all_reduce(x, (dist.ReduceOp.SUM, dist.ReduceOp.MIN)[RANK], group=group),
        "(root ": lambda: dist.broadcast(x, RANK, group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group) if RANK else dist.all_reduce(x, group=group),
        "send and recv": lambda: dist.recv(x[:10], 0, group=group) if RANK else dist.send(x, 1, group=group),
    }
    for words, call in calls.items():
        group = dist.new_group(timeout=timedelta(seconds=5))
        messages = []
        after = functools.partial(dist.all_reduce, x.clone(), group=group)
        for step in (call, after):
            try:
                step()
                torch.accelerator.synchronize()
            except dist.DistBackendError as error:
                messages.append(str(error))
        assert messages, words
        is_reported_by_peer = all("was aborted" in text or "did not join" in text for text in messages)
        assert is_reported_by_peer or any("the ranks' calls differ" in text and words in text for text in messages), (
            messages
        )
    began = time.monotonic()
elif how == "absent":
    dist.all_reduce(x)
    assert x[0].item() == 3.0 and "native" not in providers(), providers()
elif how == "fails_to_split":
    with raises(dist.DistBackendError, "all_reduce, sequence number 1, failed: comm_status failed"):
        dist.all_reduce(x)
elif how == "fails":
    with raises(dist.DistBackendError, "rank", "all_reduce, sequence number 1, failed"):  # or the peer's abort is seen
        dist.all_reduce(x)
    with raises(dist.DistBackendError, "was not started"):
        dist.broadcast(x, 0)
elif how in ("kill", "leave"):
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    dist.barrier()
    if RANK == 1:
        if how == "leave":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    with raises(dist.DistBackendError, f"rank {RANK} of group '0': all_reduce, sequence number 3"):
        end(dist.all_reduce(x, async_op=True))
    assert torch.ones(4, device=device).cpu().tolist() == [1.0] * 4  # the device itself goes on
elif how == "hang":  # a peer that never calls
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    if RANK == 1:
        meet("over")
        os._exit(0)
    with raises(dist.DistBackendError, "all_reduce, sequence number 2, failed", "3000 ms"):
        end(dist.all_reduce(x, async_op=True))
elif how == "late":  # a peer that never joins
    if RANK == 1:
        meet("over")
        os._exit(0)
    with raises(dist.DistBackendError, "all_reduce, sequence number 1, failed", "did not join within 3000 ms"):
        dist.all_reduce(x)
elif how == "abort":  # while the peers meet
    if RANK == 1:
        meet("over")
        os._exit(0)
    threading.Timer(0.3, dist.group.WORLD._get_backend(device).abort).start()
    with raises(dist.DistBackendError, "all_reduce", "it was aborted"):
        dist.all_reduce(x)
elif how == "stuck":  # aborted while a call waits for a peer that never calls
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    if RANK == 1:
        meet("over")
        os._exit(0)
    threading.Timer(0.5, dist.group.WORLD._get_backend(device).abort).start()
    with raises(dist.DistBackendError, "all_reduce, sequence number 2", "it was aborted"):
        end(dist.all_reduce(x, async_op=True))
elif how == "exit":  # with work under way that no peer joins
    dist.all_reduce(x)
    torch.accelerator.synchronize()
    dist.barrier()
    if RANK == 0:
        thread = threading.Thread(target=lambda: dist.all_reduce(x), daemon=True)
        thread.start()
        # Where a library's call only queues, the thread ends. Where the call waits for the peer,
        # nothing reports that the thread has reached the wait: then this wait takes its time.
        thread.join(0.5)
else:
    raise AssertionError(how)
assert time.monotonic() - began < 15, time.monotonic() - began
if how in ("hang", "late", "abort", "stuck"):
    meet("over")
