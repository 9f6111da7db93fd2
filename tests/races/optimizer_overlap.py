# SPDX-License-Identifier: BSD-3-Clause
"""An optimizer steps on a side stream; the next forward pass does not wait for it."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
weight = torch.nn.Parameter(torch.ones(64).to(device))
optimizer = torch.optim.SGD([weight], lr=0.5, foreach=False)
for _ in range(2):
    loss = (weight * 3).sum()  # other
    loss.backward()
    side.wait_stream(module.current_stream())
    with module.stream(side):
        optimizer.step()  # one
        weight.grad.zero_()
    if is_repaired:
        module.current_stream().wait_stream(side)
observe(loss)
module.synchronize()
