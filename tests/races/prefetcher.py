# SPDX-License-Identifier: BSD-3-Clause
"""A prefetcher copies the next batch on a side stream; the consumer does not wait for it."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
batches = [torch.full((64,), float(number)).pin_memory() for number in range(4)]


def prefetch(batch):
    with module.stream(side):
        return batch.to(device, non_blocking=True)  # one


total = torch.zeros(64, device=device)
following = prefetch(batches[0])
for number in range(4):
    current = following
    if is_repaired:
        module.current_stream().wait_stream(side)
    current.record_stream(module.current_stream())
    total += current  # other
    following = prefetch(batches[(number + 1) % 4])
observe(total)
module.synchronize()
