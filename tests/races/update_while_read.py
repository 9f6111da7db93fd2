# SPDX-License-Identifier: BSD-3-Clause
"""Weights are updated in place while an evaluation on a side stream still reads them."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
weight = torch.ones(64).to(device)
side.wait_stream(module.current_stream())
with module.stream(side):
    score = (weight * 2).sum()  # one
weight.record_stream(side)
if is_repaired:
    module.current_stream().wait_stream(side)
weight.add_(1)  # other
module.current_stream().wait_stream(side)
score.record_stream(module.current_stream())
observe(score)
