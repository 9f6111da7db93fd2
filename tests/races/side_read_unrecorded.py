# SPDX-License-Identifier: BSD-3-Clause
"""A tensor is read on a side stream and freed; the allocator hands its memory out meanwhile."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
out = torch.zeros(4096, device=device)
x = torch.full((4096,), 7.0).to(device)
side.wait_stream(module.current_stream())
with module.stream(side):
    out.copy_(x)  # one
if is_repaired:
    x.record_stream(side)
del x
y = torch.full((4096,), 9.0, device=device)  # other
module.current_stream().wait_stream(side)
observe(out + 0 * y)
