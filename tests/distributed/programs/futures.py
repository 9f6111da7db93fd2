# SPDX-License-Identifier: BSD-3-Clause
"""Works are dropped before, while and after their exchange ends, and their futures after them."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

from distributed.programs.start import attach, init

device = attach()
init("outboard")
count = int(sys.argv[1])
numbers = [torch.full((8,), float(number), device=device) for number in range(count)]
pending = []
for number, x in enumerate(numbers):
    work = dist.all_reduce(x, async_op=True)
    # Nothing is waited for: the group's thread looks every 5 ms, and ends the work before the next
    # line, while it runs, or after it.
    time.sleep((0, 0.001, 0.006)[number % 3])
    future = work.get_future()
    del work
    if number % 2:
        pending.append(future)
    else:
        future.wait()
    del future
for future in pending:
    future.wait()
assert [x[0].item() for x in numbers] == [2.0 * number for number in range(count)]
dist.destroy_process_group()
