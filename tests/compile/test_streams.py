# SPDX-License-Identifier: BSD-3-Clause
"""Streams and events in compiled functions."""

from __future__ import annotations

import pytest
import torch

from torch_outboard.testing.plugin import RunPython

pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="capability: torch 2.11's Inductor runs a graph on one stream",
)

X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


def test_events(device: torch.device) -> None:
    side = torch.Stream(device)
    ready, done = torch.Event(device), torch.Event(device)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        ready.record()
        with side:
            side.wait_event(ready)
            z = (y + 1).relu()
            done.record(side)
        torch.accelerator.current_stream().wait_event(done)
        return z + y

    got = torch.compile(function, fullgraph=True)(X.to(device))
    torch.testing.assert_close(got.cpu(), (X * 2 + 1).relu() + X * 2)


def test_a_stream_made_inside(device: torch.device) -> None:
    module = torch.get_device_module(device)

    def function(x: torch.Tensor) -> torch.Tensor:
        side = module.Stream()
        side.wait_stream(module.current_stream())
        with module.stream(side):
            z = (x + 1).sum(0)
        module.current_stream().wait_stream(side)
        return z * 2

    got = torch.compile(function, fullgraph=True)(X.to(device))
    torch.testing.assert_close(got.cpu(), (X + 1).sum(0) * 2)


def test_a_stream_that_is_current_at_the_call(device: torch.device) -> None:
    """Kernels go to the stream that is current when they are called, not when they were compiled."""
    compiled = torch.compile(lambda x: (x + 1).cos() @ x, fullgraph=True)
    x = X.to(device)
    compiled(x)
    side = torch.Stream(device)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        got = compiled(x)
    side.synchronize()
    torch.testing.assert_close(got.cpu(), (X + 1).cos() @ X, atol=1e-4, rtol=1e-4)


ORDER = """
import sys, torch, torch_outboard
schedule, waits = sys.argv[2], sys.argv[3] == "waits"
torch_outboard.attach(sys.argv[1], schedule=schedule)
name = torch_outboard.attached_driver().name
side = torch.Stream(name)

def function(x):
    y = x * 2
    if waits:
        side.wait_stream(torch.accelerator.current_stream())
    with side:
        z = y + 1
        w = z @ z
    if waits:
        torch.accelerator.current_stream().wait_stream(side)
    return w.cos() + y

x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
z = x * 2 + 1
want = (z @ z).cos() + x * 2
compiled = torch.compile(function, fullgraph=True)
here = x.to(name)
wrong = 0
for _ in range(8):
    got = compiled(here)
    torch.accelerator.synchronize()
    wrong += not torch.allclose(got.cpu(), want, atol=1e-3, rtol=1e-3)
print(wrong)
"""


def _needs_schedules(driver_target: str) -> None:
    import torch_outboard

    driver = torch_outboard.attached_driver()
    if driver is None or "schedule" not in driver.options:
        pytest.skip("capability: schedules that the test chooses")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_waits_are_kept_in_every_schedule(run_python: RunPython, driver_target: str, seed: int) -> None:
    _needs_schedules(driver_target)
    assert run_python(ORDER, driver_target, f"lazy:{seed}", "waits").stdout.split()[-1] == "0"


def test_a_missing_wait_shows(run_python: RunPython, driver_target: str) -> None:
    """So the waits above are what makes the result right."""
    _needs_schedules(driver_target)
    assert int(run_python(ORDER, driver_target, "lazy:1", "nothing").stdout.split()[-1]) > 0


FREED = """
import sys, torch, torch_outboard
torch_outboard.attach(sys.argv[1], schedule=sys.argv[2])
name = torch_outboard.attached_driver().name
side = torch.Stream(name)

def function(x):
    y = x * 2
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        w = y @ y
        v = (y + 3).cos()
    # What y was computed in is free from here on, while the other stream may still read it.
    a = x @ x
    b = a @ x
    c = b @ a
    torch.accelerator.current_stream().wait_stream(side)
    return w + v, a, b, c

x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
compiled = torch.compile(function, fullgraph=True)
here = x.to(name)
for _ in range(8):
    got = compiled(here)
    torch.accelerator.synchronize()
    y = x * 2
    torch.testing.assert_close(got[0].cpu(), y @ y + (y + 3).cos(), atol=1e-3, rtol=1e-3)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_memory_freed_inside_waits_for_the_other_stream(run_python: RunPython, driver_target: str, seed: int) -> None:
    _needs_schedules(driver_target)
    run_python(FREED, driver_target, f"lazy:{seed}")
