# SPDX-License-Identifier: BSD-3-Clause
"""OUTBOARD_FALLBACK=error if the host cannot reach the tensors."""

import torch
import torch.distributed as dist

import torch_outboard
from distributed.programs.start import raises, start

device = start()
with raises(torch_outboard.NotSupportedError, "all_reduce would copy its tensors", "OUTBOARD_FALLBACK=warn"):
    dist.all_reduce(torch.empty(2, device=device))
dist.all_reduce(torch.ones(2))
dist.barrier()
dist.destroy_process_group()
