# SPDX-License-Identifier: BSD-3-Clause
"""A loss is copied to pinned memory without blocking, and the host decides by its value."""

import sys

import torch

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
loss = torch.full((16,), 3.0).to(device).square().sum()
host = torch.zeros(()).pin_memory()
host.copy_(loss, non_blocking=True)  # one
if is_repaired:
    module.current_stream().synchronize()
print("stop" if host < 1 else "go on")  # other
