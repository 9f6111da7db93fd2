# SPDX-License-Identifier: BSD-3-Clause
"""Streams wait for an exchange, and the host does not: rank 1 joins each one after rank 0 has gone on."""

from __future__ import annotations

import os
import select
import signal
import sys

import torch
import torch.distributed as dist

from distributed.programs.start import RANK, pipe, raises, start

device = start(seconds=20)
module = torch.get_device_module(device)
pipes: list[int] = []  # open until the process ends: a byte in a pipe that nobody has open is lost


def reach(place: str) -> None:
    """Let rank 1 go on, which waits here without the group."""
    pipes.append(os.open(pipe(place), os.O_RDWR))  # does not wait for the other end
    if RANK == 0:
        os.write(pipes[-1], b".")
    else:
        assert select.select(pipes[-1:], [], [], 20)[0], f"rank 0 has not reached {place}"


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy by the device itself: other operators may run on the CPU, and wait."""
    return torch.empty_like(tensor).copy_(tensor)


x = torch.full((1 << 12,), float(RANK + 1), device=device)
torch.accelerator.synchronize()

# A call that is waited for at once.
if RANK == 1:
    reach("all_reduce")
dist.all_reduce(x)
y = copied(x)
if RANK == 0:
    assert not torch.accelerator.current_stream().query()
    reach("all_reduce")
assert y[5].item() == 3.0

# One of its own streams, dropped without a wait: memory stays whole, and the
# device's wait ends the exchange.
if RANK == 1:
    reach("dropped")
z = torch.full((1 << 12,), 1.0 + RANK, device=device)
kept = z.view(-1)
dist.all_reduce(z, async_op=True)
del z
others = [torch.full((1 << 12,), -1.0, device=device) for _ in range(8)]
if RANK == 0:
    reach("dropped")
torch.accelerator.synchronize()
assert kept.tolist() == [3.0] * (1 << 12) and all(tensor[0].item() == -1 for tensor in others)

# A list of outputs, another stream, and a future's callback, which runs
# at once and behind the exchange.
if RANK == 1:
    reach("future")
side = torch.Stream(device)
with side:
    outputs = [torch.empty(1 << 10, device=device) for _ in range(2)]
    work = dist.all_gather(outputs, torch.full((1 << 10,), float(RANK), device=device), async_op=True)
    future = work.get_future().then(lambda done: copied(done.value()[1]))
    work.wait()
    copies = [copied(output) for output in outputs]
if RANK == 0:
    assert not work.is_completed()
    reach("future")
torch.accelerator.current_stream().wait_stream(side)
assert [tensor[7].item() for tensor in copies] == [0.0, 1.0], copies
assert future.wait()[7].item() == 1.0, future.wait()
assert work.is_completed()

# Sends and receives, whose peers come later, in another order.
if RANK == 0:
    received = [torch.empty(8, device=device) for _ in range(2)]
    works = [dist.irecv(tensor, 1, tag=tag) for tag, tensor in enumerate(received)]
    for work in works:
        work.wait()
    copies = [copied(tensor) for tensor in received]
    reach("send")
    assert [tensor.tolist() for tensor in copies] == [[1.0] * 8, [2.0] * 8]
else:
    reach("send")
    for tag in (1, 0):
        dist.send(torch.full((8,), tag + 1.0, device=device), 0, tag=tag)

# A wait with a timeout, and a barrier, block the host.
if RANK == 1:
    reach("timeout")
work = dist.all_reduce(x, async_op=True)
if RANK == 0:
    from datetime import timedelta

    with raises(dist.DistBackendError, "did not complete within 50 ms"):
        work.wait(timedelta(milliseconds=50))
    reach("timeout")
    work.wait(timedelta(seconds=20))
    torch.accelerator.synchronize()
    assert work.is_completed()
    del work
dist.barrier()
assert x[0].item() == 6.0

# A barrier is behind the collectives before it, whose results nobody waited for.
large = torch.full((1 << 21,), RANK + 1.0, device=device)
for sum_ in (3.0, 6.0, 12.0):
    dist.all_reduce(large, async_op=True)
    dist.barrier()
    assert large[-1].item() == sum_

# A call reads what earlier ones of its group write, though nobody has waited for them: all of one
# tensor, the part of a larger one, and from call to call.
large.fill_(RANK + 1.0)
works = [dist.all_reduce(large, async_op=True) for _ in range(3)]
part = large[: 1 << 20]
dist.all_reduce(part, async_op=True)
dist.all_reduce(part)
torch.accelerator.synchronize()
assert large[0].item() == 48.0 and large[-1].item() == 12.0, (large[0].item(), large[-1].item())
half, whole = torch.empty(1 << 20, device=device), torch.empty(1 << 21, device=device)
dist.reduce_scatter_tensor(half, large, async_op=True)
dist.all_gather_into_tensor(whole, half, async_op=True).wait()
assert whole[0].item() == 96.0 and whole[-1].item() == 24.0, (whole[0].item(), whole[-1].item())
del works

# A failure follows the waits: it is raised where the results are read, once by each stream.
if RANK == 1:
    reach("failure")
    if "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)
dist.all_reduce(x)
y = copied(x)
work = dist.all_reduce(y, async_op=True)
side.wait_stream(torch.accelerator.current_stream())
reach("failure")
with raises(dist.DistBackendError, "rank 0 of group '0': all_reduce, sequence number", "failed"):
    y[0].item()
with raises(dist.DistBackendError, "failed"):
    side.synchronize()
side.synchronize()
with raises(dist.DistBackendError):  # of whichever stream of the group is asked first
    work.wait()
    torch.accelerator.synchronize()
with raises(dist.DistBackendError):
    work.wait()
with raises(dist.DistBackendError, "all_reduce was not started"):
    dist.all_reduce(x)
assert (torch.ones(4, device=device) + 1).tolist() == [2.0] * 4
dist.destroy_process_group()
