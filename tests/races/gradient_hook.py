# SPDX-License-Identifier: BSD-3-Clause
"""A hook copies each gradient on a side stream that does not wait for the backward pass."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
layer = torch.nn.Linear(16, 16).to(device)
copies = []


def hook(parameter):
    if is_repaired:
        side.wait_stream(module.current_stream())
    with module.stream(side):
        copies.append(parameter.grad.clone())  # other
    parameter.grad.record_stream(side)


for parameter in layer.parameters():
    parameter.register_post_accumulate_grad_hook(hook)
layer(torch.ones(4, 16).to(device)).square().sum().backward()  # one
module.current_stream().wait_stream(side)
for copy in copies:
    copy.record_stream(module.current_stream())
    observe(copy)
