# SPDX-License-Identifier: BSD-3-Clause
"""Training steps with pinned memory, a side stream, timed events, a replayed graph and a collective."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from torch_outboard.testing import observe

module = torch.get_device_module(device := torch.accelerator.current_accelerator())
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)
source, target = torch.randn(8, 8).pin_memory(), torch.randint(4, (8,)).pin_memory()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
side = module.Stream()

graph, scale, scaled = module.Graph(), torch.ones(4, device=device), torch.zeros(4, device=device)
module.synchronize()
with module.graph(graph):
    scaled.copy_(scale * 2 + 1)

dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
try:
    for _ in range(2):
        begin, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
        side.wait_stream(module.current_stream())
        with module.stream(side):
            begin.record()
            x, y = source.to(device, non_blocking=True), target.to(device, non_blocking=True)
            end.record()
        module.current_stream().wait_event(end)
        for tensor in (x, y):
            tensor.record_stream(module.current_stream())
        loss = cross_entropy(net(x), y)
        loss.backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        scale.fill_(loss.item())
        graph.replay()
        observe(loss.detach(), "loss")
        observe(scaled, "scaled")
        end.synchronize()
        assert begin.elapsed_time(end) >= 0
    copy = torch.ones(5, device=torch.device(device.type, 1))
    copy.copy_(scaled[:1].expand(5))
    observe(copy, "on the other device")
    del copy
    module.empty_cache()
finally:
    dist.destroy_process_group()
