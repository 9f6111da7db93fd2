# SPDX-License-Identifier: BSD-3-Clause
"""A thread writes a checkpoint from pinned memory before the copies to it are done."""

import sys
import threading

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
weights = [torch.full((64,), float(number)).to(device) for number in range(3)]
pinned = [torch.zeros(64).pin_memory() for _ in weights]
side = module.Stream()
side.wait_stream(module.current_stream())
with module.stream(side):
    for host, weight in zip(pinned, weights, strict=True):
        host.copy_(weight, non_blocking=True)  # one
copied = side.record_event()
written = []


def write():
    if is_repaired:
        copied.synchronize()
    written.append(torch.stack(pinned))  # other


thread = threading.Thread(target=write)
thread.start()
thread.join()
observe(written[0])
module.synchronize()
