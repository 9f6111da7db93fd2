# SPDX-License-Identifier: BSD-3-Clause
"""Two buffers take turns, but a reader waits for the event of the other one."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
buffers = [torch.zeros(64, device=device) for _ in range(2)]
ready = [module.Event() for _ in range(2)]
read = [module.Event() for _ in range(2)]
source = torch.arange(4.0).to(device)
module.synchronize()
total = torch.zeros(64, device=device)
for number in range(4):
    now = number % 2
    with module.stream(side):
        side.wait_event(read[now])
        buffers[now].copy_(source[number].expand(64))  # one
        ready[now].record()
    module.current_stream().wait_event(ready[now if is_repaired else 1 - now])
    total += buffers[now]  # other
    read[now].record()
observe(total)
module.synchronize()
