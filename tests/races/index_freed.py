# SPDX-License-Identifier: BSD-3-Clause
"""An index is read by a gather on a side stream and freed before the gather has run."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
table = torch.arange(512.0).to(device)
index = torch.arange(0, 512, 2).to(device)
side.wait_stream(module.current_stream())
with module.stream(side):
    rows = table.index_select(0, index)  # one
if is_repaired:
    index.record_stream(side)
del index
zeros = torch.zeros(256, dtype=torch.int64, device=device)  # other
module.current_stream().wait_stream(side)
rows.record_stream(module.current_stream())
observe(rows + zeros)
