# SPDX-License-Identifier: BSD-3-Clause
"""Metrics are summed on a side stream that does not wait for the step's loss."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
total = torch.zeros((), device=device)
x = torch.arange(64.0).to(device)
module.synchronize()
for number in range(3):
    loss = (x * number).mean()  # one
    if is_repaired:
        side.wait_stream(module.current_stream())
    with module.stream(side):
        total += loss  # other
    loss.record_stream(side)
module.current_stream().wait_stream(side)
observe(total)
