# SPDX-License-Identifier: BSD-3-Clause
"""OUTBOARD_BLOCKING=1, and drivers that run work at once: the failing call itself raises the failure."""

from __future__ import annotations

import pytest

FAIL = """
import pytest, torch, torch_outboard
def attach(**options):
    torch_outboard.attach("sim", devices=1, **options)
    global weight, bad, module
    module = torch.sim
    weight, bad = torch.ones(5, 2, device="sim"), torch.tensor([0, 99], device="sim")
    module.synchronize()
def look_up():
    return torch.nn.functional.embedding(bad, weight)
"""
LATE = "OUTBOARD_BLOCKING=1 raises it at the call"


def test_blocking_raises_at_the_call(run_python):
    run_python(
        FAIL
        + f"""
attach(latency=200_000)
side = torch.sim.Stream()
for stream in (torch.sim.current_stream(), side):
    with torch.sim.stream(stream):
        with pytest.raises(IndexError, match="in operator aten::index_select") as caught:
            look_up()
        assert {LATE!r} not in str(caught.value)
        assert stream.query()
        assert (weight * 2).sum().tolist() == 20
module.synchronize()
index = torch.tensor([0, 1], device="sim")
graph = torch.sim.Graph()
with torch.sim.graph(graph):
    result = torch.nn.functional.embedding(index, weight)
graph.replay()
index.copy_(bad)
with pytest.raises(IndexError):
    graph.replay()
index.zero_()
graph.replay()
assert result.sum().item() == 4
graph.reset()
module.synchronize()
""",
        env={"OUTBOARD_BLOCKING": "1"},
    )


def test_blocking_waits_for_every_kind_of_work(run_python):
    run_python(
        """
import torch, torch_outboard
torch_outboard.attach("sim", devices=1, latency=500_000)
stream = torch.sim.current_stream()
pinned = torch.ones(1 << 16).pin_memory()
for work in (
    lambda: pinned.to("sim", non_blocking=True),
    lambda: torch.zeros(1 << 16, device="sim"),
    lambda: torch.empty(64, 64, device="sim").fill_(2.0),
    lambda: torch.empty(64, 64, device="sim").copy_(torch.empty(64, 128, device="sim")[:, ::2]),
    lambda: torch.ones(64, 64, device="sim") @ torch.ones(64, 64, device="sim"),
):
    work()
    assert stream.query()
""",
        env={"OUTBOARD_BLOCKING": "1"},
    )


def test_a_late_error_names_the_variable_once(run_python):
    run_python(
        FAIL
        + f"""
attach()
with pytest.raises(IndexError) as caught:
    look_up()
    module.synchronize()
assert str(caught.value).count({LATE!r}) == 1
# This call waits by itself.
with pytest.raises(RuntimeError) as caught:
    torch.linalg.inv(torch.zeros(2, 2, device="sim"))
assert {LATE!r} not in str(caught.value)
"""
    )


def test_work_that_runs_at_once_fails_at_the_call(run_python):
    run_python(
        FAIL
        + """
attach(schedule="inline")
main, side = torch.sim.current_stream(), torch.sim.Stream()
with torch.sim.stream(side), pytest.raises(IndexError):
    look_up()
main.wait_stream(side)
module.synchronize()
"""
    )


@pytest.mark.parametrize("value", ["yes", "2"])
def test_another_value_is_refused(run_python, value):
    run_python(
        """
import pytest, torch_outboard
with pytest.raises(ValueError, match="OUTBOARD_BLOCKING must be 0 or 1, not"):
    torch_outboard.attach("sim")
""",
        env={"OUTBOARD_BLOCKING": value},
    )
