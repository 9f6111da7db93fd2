# SPDX-License-Identifier: BSD-3-Clause
"""Run operators with only the programs of a pack: python with_a_pack.py LIBCUDA NVRTC. NVRTC need not exist."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import torch_outboard
from torch_outboard.kernels import plan_statistics

module = torch_outboard.attach("nv", library=sys.argv[1], nvrtc=sys.argv[2])
x = torch.randn(31, 57).to("nv")
torch.maximum(x, x)
torch.minimum(x, x)
rows, columns = (torch.empty(size, dtype=torch.bfloat16, device="nv") for size in ((4096, 512), (512, 4096)))
torch.mm(rows, columns)
x.t().contiguous()  # by a kernel of the driver's library
module.synchronize()
assert "transpose4 " in Path(os.environ["FAKE_CUDA_LAUNCHES"]).read_text()
assert "torch._inductor" not in sys.modules, "Inductor was imported"
statistics = plan_statistics()
assert statistics["packed"] >= statistics["plans"] == 3, statistics
