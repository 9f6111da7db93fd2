# SPDX-License-Identifier: BSD-3-Clause
"""The input of a graph is overwritten on a side stream while a replay may still read it."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
static = torch.ones(64, device=device)
module.synchronize()
graph = module.Graph()
with module.graph(graph):
    result = static * 2
total = torch.zeros(64, device=device)
for number in range(3):
    graph.replay()  # one
    total += result
    if is_repaired:
        side.wait_stream(module.current_stream())
    with module.stream(side):
        static.fill_(number + 5)  # other
    module.current_stream().wait_stream(side)
observe(total)
