# SPDX-License-Identifier: BSD-3-Clause
"""A block of a KV cache is swapped out on a side stream and overwritten before the copy is done."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
cache = torch.arange(4.0).repeat_interleave(64).reshape(4, 64).to(device)
swapped = torch.zeros(64).pin_memory()
module.synchronize()
with module.stream(side):
    swapped.copy_(cache[1], non_blocking=True)  # one
if is_repaired:
    module.current_stream().wait_stream(side)
cache[1] = 99.0  # other
side.synchronize()
observe(swapped)
observe(cache)
