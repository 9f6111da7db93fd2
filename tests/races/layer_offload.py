# SPDX-License-Identifier: BSD-3-Clause
"""Layers are loaded one by one on a side stream; a layer runs before its weights have arrived."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
stored = [torch.full((8, 8), 0.1 * (number + 1)).pin_memory() for number in range(3)]
slot = torch.zeros(8, 8, device=device)
x = torch.ones(8, device=device)
for layer in stored:
    side.wait_stream(module.current_stream())
    with module.stream(side):
        slot.copy_(layer, non_blocking=True)  # one
    if is_repaired:
        module.current_stream().wait_stream(side)
    x = slot @ x  # other
observe(x)
module.synchronize()
