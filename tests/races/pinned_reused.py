# SPDX-License-Identifier: BSD-3-Clause
"""A pinned staging buffer is filled again while its copy to the device is still queued."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
staging = torch.empty(64).pin_memory()
copied = module.Event()
received = []
for number in range(3):
    staging.fill_(number)  # other
    received.append(staging.to(device, non_blocking=True))  # one
    copied.record()
    if is_repaired:
        copied.synchronize()
observe(torch.stack(received))
