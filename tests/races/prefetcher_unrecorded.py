# SPDX-License-Identifier: BSD-3-Clause
"""A prefetched batch is waited for, but not recorded: its memory takes the next batch too early."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
batches = [torch.full((1 << 18,), float(number)).pin_memory() for number in range(3)]
weight = torch.ones(1 << 18).to(device)
module.synchronize()
total = torch.zeros((), device=device)
for batch in batches:
    with module.stream(side):
        current = batch.to(device, non_blocking=True)  # other
    module.current_stream().wait_stream(side)
    if is_repaired:
        current.record_stream(module.current_stream())
    total += (current * weight).mean()  # one
    del current
observe(total)
