# SPDX-License-Identifier: BSD-3-Clause
"""An event is recorded on the current stream, not on the one that does the work."""

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
    y = x * 2  # one
done.record(side if is_repaired else module.current_stream())
module.current_stream().wait_event(done)
observe(y + 1)  # other
y.record_stream(module.current_stream())
