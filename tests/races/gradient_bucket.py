# SPDX-License-Identifier: BSD-3-Clause
"""Gradients are packed into a bucket on a side stream; the optimizer uses the bucket without a wait."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
weight = torch.ones(64).to(device)
gradients = [torch.full((32,), float(number)).to(device) for number in range(2)]
bucket = torch.zeros(64, device=device)
side.wait_stream(module.current_stream())
with module.stream(side):
    torch.cat(gradients, out=bucket)
    bucket.mul_(0.5)  # one
for gradient in gradients:
    gradient.record_stream(side)
if is_repaired:
    module.current_stream().wait_stream(side)
weight -= bucket  # other
observe(weight)
module.synchronize()
