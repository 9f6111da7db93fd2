# SPDX-License-Identifier: BSD-3-Clause
"""One of two streams that read a result waits for it; the other does not."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
producer, first, second = (module.Stream() for _ in range(3))
x = torch.arange(64.0).to(device)
module.synchronize()
with module.stream(producer):
    y = x * 3  # one
first.wait_stream(producer)
if is_repaired:
    second.wait_stream(producer)
with module.stream(first):
    a = y + 1
with module.stream(second):
    b = y + 2  # other
for stream in (first, second):
    y.record_stream(stream)
    module.current_stream().wait_stream(stream)
module.current_stream().wait_stream(producer)
for result in (a, b):
    result.record_stream(module.current_stream())
observe(a + b)
