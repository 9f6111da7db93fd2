# SPDX-License-Identifier: BSD-3-Clause
"""Groups are created and destroyed without leaking threads or memory."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist

from distributed.programs.start import RANK, attach, init, raises

device = attach()
store = os.environ["TEST_STORE"]


def live(number: int) -> None:
    os.environ["TEST_STORE"] = f"{store}-{number}"
    init("outboard")
    x = torch.ones(1 << 16, device=device)
    works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
    works[-1].wait()
    peer = 1 - RANK
    received = [torch.empty(1 << 10, device=device) for _ in range(4)]
    operations = [dist.P2POp(dist.irecv, tensor, peer, tag=i) for i, tensor in enumerate(received)]
    # In another order than the receives.
    sent = [torch.full((1 << 10,), float(i), device=device) for i in range(4)]
    operations += [dist.P2POp(dist.isend, sent[i], peer, tag=i) for i in (3, 1, 0, 2)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert [tensor[0].item() for tensor in received] == [0, 1, 2, 3]
    dist.destroy_process_group()


def own_threads() -> list[str]:
    tasks = [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]
    return [name for name in tasks if name.startswith(("outboard-group", "outboard-p2p", "outboard-waiter"))]


module = torch.get_device_module(device)
live(0)
torch.accelerator.synchronize()
before = module.memory_allocated(device)
for number in range(1, 4):
    live(number)
gc.collect()
assert own_threads() == [], own_threads()
torch.accelerator.synchronize()
module.empty_cache()
assert module.memory_allocated(device) == before == 0, (module.memory_allocated(device), before)

# A child that was forked has none of the group's threads.
os.environ["TEST_STORE"] = f"{store}-fork"
init("outboard")
dist.all_reduce(torch.ones(2, device=device))
if (child := os.fork()) == 0:
    status = 1
    try:
        with raises(RuntimeError, "forked after the group was created", "spawn"):
            dist.all_reduce(torch.ones(2))
        status = 0
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
dist.all_reduce(torch.ones(2, device=device))
