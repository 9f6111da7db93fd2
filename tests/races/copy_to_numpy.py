# SPDX-License-Identifier: BSD-3-Clause
"""A result is copied to pinned memory without blocking and read by NumPy at once."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
x = torch.arange(64.0).to(device) * 2
host = torch.zeros(64).pin_memory()
host.copy_(x, non_blocking=True)  # one
if is_repaired:
    module.current_stream().synchronize()
values = host.numpy()
print("mean", values.mean())
observe(torch.from_numpy(values.copy()))
