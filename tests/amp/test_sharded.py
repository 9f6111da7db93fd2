# SPDX-License-Identifier: BSD-3-Clause
"""ShardedGradScaler, with a second rank that reports a given result."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

if not distributed.is_available():
    pytest.skip("capability: torch.distributed", allow_module_level=True)

from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


class Done(distributed.Work):
    def wait(self, timeout=None):
        return True


class TwoRanks(distributed.ProcessGroup):
    """A group that adds this rank's result and the other rank's, which is `other_found_inf`."""

    def __init__(self):
        super().__init__(0, 2)
        self.other_found_inf = 0.0
        self.reduced = []

    def allreduce(self, tensors, options=None):
        self.reduced.append(tensors[0].device)
        tensors[0].add_(self.other_found_inf)
        return Done()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_every_rank_skips_what_one_skips(device, dtype):
    parameters = [torch.ones(3, device=device, dtype=dtype, requires_grad=True) for _ in range(2)]
    group = TwoRanks()
    optimizer = torch.optim.SGD(parameters, lr=0.25)
    scaler = ShardedGradScaler(device.type, init_scale=8.0, growth_interval=2, process_group=group)
    # (found here, found there) and what the step makes of the parameters and the scale
    for here, there, value, scale in [
        (False, 0.0, 0.75, 8.0),
        (False, 1.0, 0.75, 4.0),
        (True, 0.0, 0.75, 2.0),
        (True, 1.0, 0.75, 1.0),
        (False, 0.0, 0.5, 1.0),
        (False, 0.0, 0.25, 2.0),
    ]:
        group.other_found_inf = there
        optimizer.zero_grad()
        factor = float("inf") if here else 1.0
        for loss in scaler.scale([(parameter * factor).sum() for parameter in parameters]):
            loss.backward()
        scaler.step(optimizer)
        scaler.update()
        assert [parameter.tolist() for parameter in parameters] == [[value] * 3] * 2
        assert scaler.get_scale() == scale
    assert group.reduced == [device] * 6
