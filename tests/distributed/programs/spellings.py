# SPDX-License-Identifier: BSD-3-Clause
"""The spellings of init_process_group, and what a group of each can do: argv[1] chooses one."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist

from distributed.programs.start import RANK, attach, init

how = sys.argv[1]
device = attach()
name = device.type
assert dist.get_default_backend_for_device(device) == "outboard"
if how == "address":  # as torchrun's workers do
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", sys.argv[2]
    dist.init_process_group(device_id=device, timeout=timedelta(seconds=60))
else:
    spelling = {"": None, "name": "outboard", "pair": f"cpu:gloo,{name}:outboard", "device": None}[how]
    init(spelling, **({"device_id": device} if how == "device" else {}))
assert dist.get_world_size() == 2 and dist.get_rank() == RANK

x = torch.full((3,), float(RANK), device=device)
dist.all_reduce(x)
assert x.tolist() == [1.0] * 3
host = torch.full((3,), RANK)
dist.all_reduce(host)
assert host.tolist() == [1] * 3
objects = [None, None]
dist.all_gather_object(objects, {"rank": RANK})
assert objects == [{"rank": 0}, {"rank": 1}]
dist.broadcast_object_list(objects := [RANK, "x" * RANK], src=1)
assert objects == [1, "x"]
dist.barrier()
group = dist.new_group([1])
if RANK == 1:
    dist.all_reduce(x, group=group)
    assert x.tolist() == [1.0] * 3
group = dist.new_group([0, 1], timeout=timedelta(seconds=30))
dist.broadcast(x.fill_(RANK), 1, group=group)
assert x.tolist() == [1.0] * 3
# Older ones look for the backend of CUDA devices there.
if how == "device" and tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):
    group = dist.split_group(split_ranks=[[0], [1]])
    assert group.size() == 1
    dist.all_reduce(x, group=group)
    assert x.tolist() == [1.0] * 3
    # Torch splits once for each type of device, and drops what it has already: others still
    # connect to it. A group has two of Gloo's, of the device and of the CPU.
    with mock.patch.object(dist, "ProcessGroupGloo", wraps=dist.ProcessGroupGloo) as gloo:
        group = dist.split_group(split_ranks=[[0, 1]])
    assert gloo.call_count == 2
    dist.all_reduce(x, group=group)
    assert x.tolist() == [2.0] * 3
backend = dist.group.WORLD._get_backend(device)
assert backend.name() == "outboard" and backend.supports_splitting
assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == ("gloo" if how == "pair" else "outboard")
dist.destroy_process_group()
assert not dist.is_initialized()
# A second life in the same process.
os.environ["TEST_STORE"] += "-second"
init("outboard")
dist.all_reduce(x.fill_(RANK))
assert x.tolist() == [1.0] * 3
dist.destroy_process_group()
