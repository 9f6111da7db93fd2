# SPDX-License-Identifier: BSD-3-Clause
"""A store whose process is killed: groups that exist go on, and a new group fails within the timeout."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from distributed.programs.start import RANK, attach, meet, raises

PORT = int(os.environ["TEST_PORT"])
SECONDS = timedelta(seconds=10)


def serve() -> None:
    store = dist.TCPStore("127.0.0.1", PORT, is_master=True, wait_for_workers=False)
    signal.pause()
    del store


child = os.fork() if RANK == 0 else 0
if RANK == 0 and child == 0:
    serve()
device = attach()
store = dist.TCPStore("127.0.0.1", PORT, is_master=False, timeout=timedelta(seconds=60))
dist.init_process_group(store=store, rank=RANK, world_size=2, timeout=SECONDS)
x = torch.ones(1 << 10, device=device)
dist.all_reduce(x)
later = dist.new_group()
assert x.sum().item() == 2 << 10
meet("begin")
if RANK == 0:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
meet("killed")

dist.all_reduce(x)
dist.all_reduce(x, group=later)  # its ranks met when it was made
assert x.sum().item() == 8 << 10
began = time.monotonic()
with raises(dist.DistNetworkError):
    dist.new_group()
assert time.monotonic() - began < SECONDS.total_seconds() + 2, time.monotonic() - began
dist.all_reduce(x)
assert x.sum().item() == 16 << 10
meet("over")
dist.destroy_process_group()
