# SPDX-License-Identifier: BSD-3-Clause
"""A loader's thread copies batches on its own stream and hands them over without an event."""

import queue
import sys
import threading

import torch

from torch_outboard.testing import observe

is_repaired = "--repaired" in sys.argv
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
batches = queue.Queue()


def load():
    with module.stream(stream := module.Stream()):
        for number in range(3):
            batch = torch.full((64,), float(number)).pin_memory().to(device, non_blocking=True)  # one
            batches.put((batch, stream.record_event()))


thread = threading.Thread(target=load)
thread.start()
thread.join()
total = torch.zeros(64, device=device)
while not batches.empty():
    batch, copied = batches.get()
    if is_repaired:
        module.current_stream().wait_event(copied)
        batch.record_stream(module.current_stream())
    total += batch  # other
observe(total)
module.synchronize()
