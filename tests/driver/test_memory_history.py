# SPDX-License-Identifier: BSD-3-Clause
"""History, snapshots, and the tools that read them."""

from __future__ import annotations

import gc
import pickle

import pytest
import torch
from click.testing import CliRunner
from torch.cuda import _memory_viz

from torch_outboard.cli import main

from .support import module_of

MIB = 1 << 20
ABSURD = 1 << 52


@pytest.fixture(autouse=True)
def history(device):
    gc.collect()
    torch.accelerator.synchronize(device)
    module_of(device).empty_cache()
    yield
    module_of(device).memory._record_memory_history(None, clear_history=True)


def block(device, size):
    return torch.empty(size, dtype=torch.uint8, device=device)


def entries(device, action=None):
    trace = module_of(device).memory._snapshot()["device_traces"][device.index]
    return [entry for entry in trace if action in (None, entry["action"])]


def names(entry):
    return [frame["name"] for frame in entry["frames"]]


def test_a_history_tells_what_happened(device):
    memory = module_of(device).memory
    memory._record_memory_history(stacks="python")
    tensor = block(device, 3_000_000)
    address = tensor.data_ptr()
    del tensor
    module_of(device).empty_cache()
    trace = entries(device)
    ours = [entry["action"] for entry in trace if entry["addr"] == address]
    assert ours == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    assert trace[-1]["action"] == "snapshot"
    alloc = next(entry for entry in trace if entry["action"] == "alloc")
    assert alloc["size"] == 3_000_000 and alloc["stream"] == 0 and alloc["pool_id"] == (0, 0)
    assert names(alloc)[:2] == ["block", "test_a_history_tells_what_happened"]
    times = [entry["time_us"] for entry in trace]
    assert times == sorted(times) and times[0] > 1_600_000_000_000_000


def test_live_blocks_have_their_stacks(device):
    memory = module_of(device).memory
    memory._record_memory_history("state", context="state", stacks="python")
    tensor = block(device, 5 * MIB)
    snapshot = memory._snapshot()
    assert snapshot["device_traces"][device.index] == []
    live_block = {entry["address"]: entry for segment in snapshot["segments"] for entry in segment["blocks"]}[
        tensor.data_ptr()
    ]
    assert live_block["state"] == "active_allocated" and live_block["requested_size"] == 5 * MIB
    assert "test_live_blocks_have_their_stacks" in names(live_block)
    memory._record_memory_history()
    block(device, 100)
    assert memory._snapshot()["device_traces"][device.index]
    memory._record_memory_history(None)
    assert not memory._snapshot()["device_traces"][device.index], "as torch.cuda, it forgets what it has recorded"
    assert not any(entry["frames"] for segment in memory._snapshot()["segments"] for entry in segment["blocks"])


def test_stacks_may_hold_cpp_frames(device):
    memory = module_of(device).memory
    memory._record_memory_history(max_entries=4)
    kept = block(device, 100)
    alloc = entries(device, "alloc")[0]
    assert any(not frame["filename"].endswith(".py") for frame in alloc["frames"])
    assert "test_stacks_may_hold_cpp_frames" in names(alloc)
    del kept


def test_a_history_keeps_the_newest_entries(device):
    memory = module_of(device).memory
    memory._record_memory_history(context=None, max_entries=5, clear_history=True)
    tensors = [block(device, size) for size in range(1000, 1020)]
    assert [entry["size"] for entry in entries(device, "alloc")] == [1016, 1017, 1018, 1019]
    memory._record_memory_history(context=None, skip_actions=["alloc", "snapshot"], clear_history=True)
    del tensors
    assert {entry["action"] for entry in entries(device)} == {"free_requested", "free_completed"}


def test_a_failure_is_in_the_history(device):
    module_of(device).memory._record_memory_history(stacks="python")
    with pytest.raises(torch.OutOfMemoryError):
        block(device, ABSURD)
    failure = entries(device, "oom")[0]
    assert failure["size"] == ABSURD and "device_free" in failure and "block" in names(failure)


def test_memory_of_a_pool_is_marked(device):
    module = module_of(device)
    pool = module.MemPool()
    with module.use_mem_pool(pool):
        tensor = block(device, 100)
    assert [segment["segment_pool_id"] for segment in pool.snapshot()] == [pool.id]
    assert pool.id in {segment["segment_pool_id"] for segment in module.memory_snapshot()}
    del tensor, pool


@pytest.mark.parametrize(
    "wrong", [{"enabled": "yes"}, {"context": "some"}, {"stacks": "c"}, {"max_entries": -1}, {"skip_actions": ["x"]}]
)
def test_wrong_arguments_are_refused(device, wrong):
    with pytest.raises(ValueError):
        module_of(device).memory._record_memory_history(**wrong)


def test_the_tools_read_a_snapshot(device, tmp_path):
    memory = module_of(device).memory
    memory._record_memory_history(stacks="python")
    tensors = [block(device, size) for size in (100, 5 * MIB, 30 * MIB)]
    del tensors[1]
    path = tmp_path / "snapshot.pickle"
    memory._dump_snapshot(path)
    snapshot = pickle.loads(path.read_bytes())
    assert "test_the_tools_read_a_snapshot" in _memory_viz.segsum(snapshot) + _memory_viz.trace(snapshot)
    assert "<html" in _memory_viz.trace_plot(snapshot) and _memory_viz.segment_plot(snapshot)

    answer = CliRunner().invoke(main, ["memory", str(path)])
    assert answer.exit_code == 0 and "reserved" in answer.output and "test_memory_history.py" in answer.output
    page = tmp_path / "out.html"
    assert CliRunner().invoke(main, ["memory", str(path), "--html", str(page)]).exit_code == 0
    text = page.read_text()
    assert "test_the_tools_read_a_snapshot" in text and "<polyline" not in text
    # Nothing is fetched: the one address in it is the name of SVG's namespace.
    assert text.count("http") == text.count("http-equiv") + text.count("http://www.w3.org/2000/svg")
