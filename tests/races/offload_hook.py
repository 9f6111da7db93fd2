# SPDX-License-Identifier: BSD-3-Clause
"""Saved tensors are offloaded on a side stream; the backward pass reads them without a wait."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()


def pack(tensor):
    side.wait_stream(module.current_stream())
    with module.stream(side):
        return tensor.detach().clone()  # one


def unpack(tensor):
    if is_repaired:
        module.current_stream().wait_stream(side)
        tensor.record_stream(module.current_stream())
    return tensor


x = torch.arange(300.0).to(device).requires_grad_()
w = torch.full((300,), 3.0).to(device)
with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
    loss = (x * w).sum()
loss.backward()  # other
observe(x.grad)
