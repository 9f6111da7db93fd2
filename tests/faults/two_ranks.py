# SPDX-License-Identifier: BSD-3-Clause
"""Training steps of two ranks, whose second one runs without failing calls: it must end when the first one does."""

import datetime
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist

from torch_outboard.testing import observe

rank = int(sys.argv[2]) if len(sys.argv) > 2 else 0
peer = None
if rank == 0:
    folder = tempfile.TemporaryDirectory()
    place = os.path.join(folder.name, "store")
    without = {name: value for name, value in os.environ.items() if "FAULT" not in name}
    peer = subprocess.Popen([sys.executable, __file__, place, "1"], env=without, stderr=subprocess.DEVNULL)
else:
    place = sys.argv[1]
try:
    module = torch.get_device_module(device := torch.accelerator.current_accelerator())
    dist.init_process_group(
        init_method=f"file://{place}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=8)
    )
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 4).to(device)
    side = module.Stream()
    for step in range(2):
        x = torch.full((2, 8), float(rank + step)).pin_memory()
        with module.stream(side):
            batch = x.to(device, non_blocking=True)
        module.current_stream().wait_stream(side)
        batch.record_stream(module.current_stream())
        loss = net(batch).square().mean()
        loss.backward()
        works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in net.parameters()]
        for work in works:
            work.wait()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        observe(net.weight.detach(), "weight")
    dist.destroy_process_group()
finally:
    if peer is not None:
        has_failed = sys.exc_info()[0] is not None
        if has_failed and dist.is_initialized():
            dist.destroy_process_group()
        elif has_failed:
            peer.kill()  # it waits for this rank, which never comes
        status = peer.wait(40)  # longer than the second rank may wait for this one
        if not has_failed and status != 0:
            raise RuntimeError(f"the second rank ended with status {status}, and this one has noticed nothing")
