# SPDX-License-Identifier: BSD-3-Clause
"""An event is recorded before the work that it stands for."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
x = torch.arange(64.0).to(device)
module.synchronize()
done = module.Event()
with module.stream(side):
    if not is_repaired:
        done.record()
    y = x * 2  # one
    if is_repaired:
        done.record()
module.current_stream().wait_event(done)
observe(y + 1)  # other
y.record_stream(module.current_stream())
