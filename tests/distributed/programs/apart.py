# SPDX-License-Identifier: BSD-3-Clause
"""What must not wait for, or mix with, something else: argv[1] chooses."""

from __future__ import annotations

import sys
import threading

import torch
import torch.distributed as dist

from distributed.programs.start import RANK, attach, init, raises
from torch_outboard import DriverError

how = sys.argv[1]
device = attach()
init(seconds=20)


def wait_for(latch: threading.Event) -> None:
    assert latch.wait(20), "the other thread is stuck"


if how == "any source":
    store = dist.distributed_c10d._get_default_store()
    for tag in (0, 3):
        for asks_by_work in (False, True):
            x = torch.full((4,), float(RANK), device=device)
            key = f"asked {tag} {asks_by_work}"
            if RANK == 0:
                store.wait([key])  # the receiver asks before the message has come
                dist.send(x, 1, tag=tag)
            elif asks_by_work:
                work = dist.group.WORLD.recv_anysource([x], tag)
                store.set(key, "")
                work.wait()
                assert work._source_rank() == 0
            else:
                store.set(key, "")
                assert dist.recv(x, tag=tag) == 0
            assert x.tolist() == [0.0] * 4
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    with raises(RuntimeError, "only a recv from any rank"):
        work._source_rank()
elif how == "threads":
    # Each rank starts its threads in another order, and they share a stream.
    groups = [dist.new_group() for _ in range(6)]
    tensors = [torch.ones(1000, device=device) for _ in groups]
    begun = [threading.Event() for _ in groups]

    def exchange(number: int) -> None:
        begun[number].set()
        for _ in range(5):
            dist.all_reduce(tensors[number], group=groups[number])
            work = dist.all_reduce(tensors[number], group=groups[number], async_op=True)
            work.wait()

    order = range(6) if RANK == 0 else range(5, -1, -1)
    threads = [threading.Thread(target=exchange, args=(number,)) for number in order]
    for number, thread in zip(order, threads, strict=True):
        thread.start()
        wait_for(begun[number])
    for thread in threads:
        thread.join()
    assert [tensor[0].item() for tensor in tensors] == [1024.0] * 6
elif how == "saver":
    # A thread exchanges CPU tensors, as a saver of checkpoints does, in the order of its own: it is
    # ahead of the main thread on one rank, and behind it on the other.
    failures: list[BaseException] = []
    saved, computed = ([threading.Event() for _ in range(count)] for count in (20, 40))

    def save() -> None:
        for number in range(20):
            if RANK == 1 and number > 0:
                wait_for(computed[2 * number - 1])
            host = torch.full((number + 1,), RANK + 1, dtype=torch.int64)
            dist.all_reduce(host)
            assert host.tolist() == [3] * (number + 1)
            saved[number].set()

    def run() -> None:
        try:
            save()
        except BaseException as error:
            failures.append(error)

    saver = threading.Thread(target=run)
    saver.start()
    for number in range(40):
        if RANK == 0:
            wait_for(saved[number // 2])
        x = torch.full((100 + number,), float(RANK), device=device)
        dist.all_reduce(x)
        assert x.tolist() == [1.0] * (100 + number)
        computed[number].set()
    saver.join()
    assert not failures, failures
elif how == "signal":
    # The first event_signal fails: the stream goes on, and its waits raise.
    x = torch.ones(8, device=device)
    with raises(DriverError, "event_signal", "injected fault"):
        dist.all_reduce(x)
        x.tolist()
    dist.all_reduce(x.fill_(1))
    assert x.tolist() == [2.0] * 8
dist.destroy_process_group()
