# SPDX-License-Identifier: BSD-3-Clause
"""A server returns a slot to its pool before the reply that is copied from it has left."""

import sys

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
slot = torch.zeros(64, device=device)
replies = [torch.zeros(64).pin_memory() for _ in range(3)]
module.synchronize()
for number, reply in enumerate(replies):
    slot.fill_(number)  # other
    side.wait_stream(module.current_stream())
    with module.stream(side):
        reply.copy_(slot, non_blocking=True)  # one
    if is_repaired:
        module.current_stream().wait_stream(side)
side.synchronize()
for reply in replies:
    observe(reply)
