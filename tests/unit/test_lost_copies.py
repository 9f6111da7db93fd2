# SPDX-License-Identifier: BSD-3-Clause
"""A driver's copy that fails: each wait behind it raises the failure, whatever streams and devices lie between."""

from __future__ import annotations

import pytest

from torch_outboard.testing.plugin import RunPython

HEAD = """
import pytest, torch, torch_outboard
module = torch_outboard.attach("sim", schedule={schedule!r}, fault="queued:copy_async:1:DATA_LOSS", poison=1)
side, current = module.Stream(), module.current_stream()
host = torch.ones(4).pin_memory()
lost = pytest.raises(torch_outboard.DriverError, match="DATA_LOSS")
"""

ANOTHER_STREAM = """
with module.stream(side):
    x = host.to("sim", non_blocking=True)
current.wait_stream(side)
y = x * 2
with lost:
    y.cpu()
with lost:  # each stream raises it once
    side.synchronize()
side.synchronize()
module.synchronize()
assert (torch.ones(4, device="sim") * 2).tolist() == [2.0] * 4
"""

A_THIRD_STREAM = """
third = module.Stream()
with module.stream(side):
    x = host.to("sim", non_blocking=True)
    x.add_(1)  # host work behind the copy, which ends well
third.wait_stream(side)
current.wait_stream(third)
with lost:
    current.synchronize()
"""

AN_EVENT = """
with module.stream(side):
    x = host.to("sim", non_blocking=True)
    done = side.record_event()
with lost:
    done.synchronize()
"""

ANOTHER_DEVICE = """
x = torch.ones(4, device="sim")
y = torch.zeros(4, device="sim:1")
y.copy_(x, non_blocking=True)
with lost:
    y.cpu()
"""

NOTHING_BEHIND = """
with module.stream(side):
    x = host.to("sim", non_blocking=True)
assert (torch.ones(4, device="sim") * 2).tolist() == [2.0] * 4
current.synchronize()
with lost:
    side.synchronize()
"""


@pytest.mark.parametrize("schedule", ["inline", "normal", "pct:1"])
@pytest.mark.parametrize(
    "text", [ANOTHER_STREAM, A_THIRD_STREAM, AN_EVENT, ANOTHER_DEVICE, NOTHING_BEHIND], ids=range(5)
)
def test_waits_behind_it_raise(run_python: RunPython, text: str, schedule: str) -> None:
    run_python(HEAD.format(schedule=schedule) + text)
