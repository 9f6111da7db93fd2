# SPDX-License-Identifier: BSD-3-Clause
"""Invalid arguments raise at the call, with their error type, before a wait for a peer; the group still works."""

from __future__ import annotations

import copy
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
)

import torch_outboard
from distributed.programs.start import RANK, init, raises, start
from torch_outboard.distributed._register import create

device = start()
PEER = 1 - RANK
x = torch.arange(4.0, device=device)
Op = dist.ReduceOp


def lives() -> None:
    y = torch.full((2,), RANK, device=device)
    dist.all_reduce(y)
    assert y.tolist() == [1, 1]


backend = dist.group.WORLD._get_backend(device)
NotSupported = torch_outboard.NotSupportedError

with raises(NotSupported, "all_reduce of Sparse", "to_dense"):
    backend.allreduce([torch.eye(2, device=device).to_sparse()], AllreduceOptions())
with raises(NotSupported, "Short is not supported", "Convert"):
    dist.all_reduce(torch.ones(2, dtype=torch.int16, device=device))
with raises(NotSupported, "Float8_e4m3fn is not supported"):
    dist.all_reduce(x.to(torch.float8_e4m3fn))
with raises(ValueError, "BAND takes integers"):
    dist.all_reduce(x, Op.BAND)
with raises(ValueError, "AVG does not support bool"):
    dist.all_reduce(x > 1, Op.AVG)
with raises(ValueError, "PREMUL_SUM takes floats"):
    dist.all_reduce(x.long(), dist._make_nccl_premul_sum(2.0))
maximum = AllreduceOptions()
maximum.reduceOp = Op.MAX
with raises(ValueError, "MAX does not support"):
    backend.allreduce([torch.complex(x, x)], maximum)
with raises(ValueError, "elements does not hold 2 parts"):
    dist.all_gather_into_tensor(torch.empty(9, device=device), x)
with raises(ValueError, "elements does not hold 2 parts"):
    dist.reduce_scatter_tensor(torch.empty(3, device=device), x)
with raises(ValueError, "one dtype"):
    backend._allgather_base(torch.empty(8, dtype=torch.int64, device=device), x, AllgatherOptions())
with raises(ValueError, "has 1 tensors, but the group has 2 ranks"):
    dist.all_gather([torch.empty(4, device=device)], x)
with raises(ValueError, "contains a tensor of"):
    dist.all_gather([torch.empty(4, device=device), torch.empty(5, device=device)], x)
with raises(ValueError, "don't sum to its 4 rows"):
    dist.all_to_all_single(torch.empty(4, device=device), x, [2, 2], [1, 2])
with raises(ValueError, "3 splits"):
    dist.all_to_all_single(torch.empty(4, device=device), x, [2, 2], [1, 2, 1])
with raises(ValueError, "a split of the input is negative"):
    dist.all_to_all_single(torch.empty(4, device=device), x, [2, 2], [-1, 5])
with raises(ValueError, "cannot be divided evenly among 2 ranks"):
    dist.all_to_all_single(torch.empty(3, device=device), x[:3])
with raises(ValueError, "takes a tensor for each"):
    dist.all_to_all([torch.empty(2, device=device)], [x[:2]])
with raises(ValueError, "the source is rank 7"):
    options = BroadcastOptions()
    options.rootRank = 7
    backend.broadcast([x], options)
with raises(ValueError, "itself"):
    backend.send([x], RANK, 0)
with raises(ValueError, "the source is rank 5"):
    backend.recv([x], 5, 0)
with raises(ValueError, "takes one tensor"):
    backend.allreduce([x, x], AllreduceOptions())
with raises(ValueError, "takes tensors of one device"):
    dist.all_gather([torch.empty(4), torch.empty(4)], x)
with raises(ValueError, "and the CPU, got one on meta"):
    backend.allreduce([torch.empty(4, device="meta")], AllreduceOptions())
if torch.get_device_module(device).device_count() > 1:
    other_device = torch.device(device.type, 1 - device.index)
    with raises(ValueError, "takes tensors of one device"):
        backend.allreduce_coalesced([x, x.to(other_device)], AllreduceCoalescedOptions())
    y = x.to(other_device)  # another device than the current one
    dist.all_reduce(y)
    assert torch.equal(y.cpu(), 2 * torch.arange(4.0))
with raises(RuntimeError, "single memory location"):
    dist.broadcast(torch.ones(1, device=device).expand(4), 0)
with raises(TypeError, "pg_options"):
    create(None, dist.ProcessGroup.BackendType.GLOO)
with raises(dist.DistBackendError, "did not complete within 50 ms"):
    # Of a receive that is sent to further down.
    work = dist.irecv(y := torch.empty(2, device=device), PEER)
    work.wait(timedelta(milliseconds=50))
dist.barrier()
dist.isend(torch.tensor([5.0, 6.0], device=device), PEER)
work.wait()
assert y.tolist() == [5.0, 6.0]
lives()

for options in (backend.options, copy.copy(backend.options), copy.deepcopy(backend.options)):
    assert type(options) is type(backend.options) and options.group_name == backend.options.group_name
# Dropped unwaited, and used on by both ranks.
for _ in range(20):
    dist.all_reduce(torch.ones(1 << 10, device=device), async_op=True)
lives()
with raises(torch_outboard.CaptureError, "all_reduce"):
    module = torch.get_device_module(device)
    with module.graph(module.Graph()):
        dist.all_reduce(x)
lives()
assert dist.group.WORLD._get_backend(device)._get_sequence_number_for_group() > 0
dist.destroy_process_group()
with raises(ValueError, "not been initialized"):
    dist.all_reduce(x)
with raises(dist.DistBackendError, "was destroyed"):
    backend.allreduce([x], AllreduceOptions())
os.environ["TEST_STORE"] += "-2"
init("outboard")
lives()
# Destroyed with a receive that nobody sends to, and a collective under way.
late = dist.irecv(torch.empty(2, device=device), PEER)
dist.all_reduce(x, async_op=True)
dist.destroy_process_group()
with raises(dist.DistBackendError, "recv"):
    late.wait()
