# SPDX-License-Identifier: BSD-3-Clause
"""Ranks whose calls differ, as under TORCH_DISTRIBUTED_DEBUG=DETAIL: the error names the difference."""

import torch
import torch.distributed as dist

from distributed.programs.start import RANK, raises, start

dist.set_debug_level(dist.DebugLevel.DETAIL)  # torch was imported before the test could set the variable
device = start(seconds=20)
x = torch.ones(4, device=device)
dist.all_reduce(x)
assert x.tolist() == [2.0] * 4
with raises(RuntimeError, "Detected mismatch between collectives", "ALLREDUCE", "BROADCAST"):
    dist.all_reduce(x) if RANK == 0 else dist.broadcast(x, 0)
with raises(RuntimeError, "Detected mismatch between collectives"):
    dist.all_reduce(x[: 2 + RANK])
