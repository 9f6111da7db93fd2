# SPDX-License-Identifier: BSD-3-Clause
"""torch.profiler records the device: its work with times, on lanes of its streams, tied to the operators behind it."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from .support import has_entry, module_of, pinned, runs_operators, times_events

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
# The first id of our arrows: the ids of torch's own profilers, in the same table, count up from 1.
FLOWS = 1 << 30
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
# Torch's, when a profile begins (2.11) or its second cycle does; it crashes
# there if that is made an error.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")


@functools.cache
def is_recorded_by_torch(device: torch.device) -> bool:
    """Return whether a torch with CUPTI records the device's work itself, and reports it a second time."""
    if ProfilerActivity.CUDA not in torch.profiler.supported_activities():
        return False
    x = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    torch.accelerator.synchronize(device)
    with profile(activities=BOTH) as result:
        x.zero_()
        torch.accelerator.synchronize(device)
    return sum(event.device_type in (DeviceType.PrivateUse1, DeviceType.CUDA) for event in result.events()) > 1


@pytest.fixture
def timed(device: torch.device) -> None:
    if not times_events(device):
        pytest.skip("capability: event_timestamp or event_elapsed. The driver has no times of what it does")
    if is_recorded_by_torch(device):
        pytest.skip("capability: a torch whose own CUPTI profiler doesn't record this device's work too")


@pytest.fixture
def timed_operators(device: torch.device, timed: None) -> None:
    if not runs_operators(device):
        pytest.skip("capability: kernels, the host's or generated ones. The device's work is copies")


class Trace:
    """A trace as exported."""

    def __init__(self, path: Path) -> None:
        self.events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]

    def of(self, *categories: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("cat") in categories and event["ph"] == "X"]

    def arrows(self, phase: str) -> dict[int, dict[str, Any]]:
        arrows_of_phase = [event for event in self.events if event.get("cat") == "ac2g" and event["ph"] == phase]
        return {event["id"] - FLOWS: event for event in arrows_of_phase}

    def lane_names(self) -> dict[tuple[int, int], str]:
        return {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in self.events
            if event["ph"] == "M" and event["name"] == "thread_name"
        }


@pytest.fixture
def trace_of(device: torch.device, tmp_path: Path) -> Callable[[Callable[[], object]], Trace]:
    def run(work: Callable[[], object]) -> Trace:
        torch.accelerator.synchronize(device)
        with profile(activities=BOTH) as result:
            work()
            torch.accelerator.synchronize(device)
        path = tmp_path / "trace.json"
        result.export_chrome_trace(str(path))
        return Trace(path)

    return run


def end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def test_an_operator_has_the_time_of_its_work(device, timed_operators):
    x = torch.randn(256, 256, device=device)
    y = x @ x
    torch.accelerator.synchronize(device)
    with profile(activities=BOTH) as result:
        for _ in range(3):
            torch.mm(x, x, out=y)
        torch.accelerator.synchronize(device)
    rows = {(row.key, row.device_type): row for row in result.key_averages()}
    row = rows["aten::mm", DeviceType.CPU]
    assert row.count == 3
    assert 0 < row.self_device_time_total < 60e6, "microseconds"
    # The operator's own row says what its work says.
    work = sum(event.self_device_time_total for key, event in rows.items() if key[1] == DeviceType.PrivateUse1)
    assert work == pytest.approx(row.self_device_time_total, rel=0.01)
    table = result.key_averages().table(sort_by="self_device_time_total")
    assert f"Self {device.type.upper()}" in table


def test_every_call_points_at_its_work(device, timed, trace_of):
    x = torch.randn(64, 64, device=device)
    host = torch.empty(64, 64)

    def work() -> None:
        y = x @ x
        y.relu_()
        y.zero_()
        host.copy_(y)

    trace = trace_of(work)
    works = {event["args"]["correlation"]: event for event in trace.of(*WORK)}
    calls = {event["args"]["correlation"]: event for event in trace.of("privateuse1_runtime")}
    operators = {event["args"]["External id"]: event for event in trace.of("cpu_op")}
    starts, ends = trace.arrows("s"), trace.arrows("f")
    assert len(works) >= 4
    assert set(starts) == set(ends) == set(works)
    for number, event in works.items():
        call = calls[number]
        assert event["ts"] >= call["ts"], "work begins after it was queued"
        operator = operators[event["args"]["External id"]]
        assert operators[call["args"]["External id"]] is operator
        assert operator["ts"] <= call["ts"] + 5 and end(call) <= end(operator) + 5
        assert (call["pid"], call["tid"]) == (operator["pid"], operator["tid"])
        assert (event["pid"], event["tid"]) == (device.index, 0)
        assert (starts[number]["tid"], ends[number]["tid"]) == (call["tid"], event["tid"])
    # One stream does one thing after the other.
    in_order = sorted(works.values(), key=lambda event: event["ts"])
    assert [event["args"]["correlation"] for event in in_order] == sorted(works)
    for before, after in zip(in_order, in_order[1:], strict=False):
        assert end(before) <= after["ts"] + 1


def test_copies_and_fills_say_what_they_moved(device, timed, trace_of):
    x = torch.empty(1 << 12, device=device)
    source, target = pinned(1 << 12), pinned(1 << 12)

    def work() -> None:
        x.copy_(source, non_blocking=True)
        target.copy_(x, non_blocking=True)
        x.clone()

    copies = trace_of(work).of("gpu_memcpy")
    assert [event["name"][:11] for event in sorted(copies, key=lambda event: event["ts"])] == [
        "Memcpy HtoD",
        "Memcpy DtoH",
        "Memcpy DtoD",
    ]
    assert {event["args"]["bytes"] for event in copies} == {1 << 14}


def test_fills(device, timed, trace_of):
    if not has_entry("fill_async"):
        pytest.skip("capability: fill_async. The driver has no fill")
    x = torch.empty(1000, device=device)
    (event,) = trace_of(lambda: x.fill_(3)).of("gpu_memset")
    assert event["args"]["bytes"] == 4000


def test_each_stream_has_a_lane(device, timed, trace_of):
    module = module_of(device)
    streams = [torch.Stream(device) for _ in range(3)]
    x = torch.ones(1 << 14, device=device)

    def work() -> None:
        for stream in streams:
            stream.wait_stream(module.current_stream(device))
            with module.stream(stream):
                x.clone()

    trace = trace_of(work)
    lanes = {(event["pid"], event["tid"]) for event in trace.of(*WORK)}
    assert lanes == {(device.index, stream.stream_id) for stream in streams}
    names = trace.lane_names()
    for stream in streams:
        assert names[device.index, stream.stream_id] == f"{device} stream {stream.stream_id}"
    assert [event["name"] for event in trace.of("privateuse1_runtime")].count("stream_wait_event") == 3


def test_each_device_has_lanes(device, timed, tmp_path):
    if torch.accelerator.device_count() < 2:
        pytest.skip("capability: two devices. The driver has one")
    others = [torch.device(device.type, index) for index in range(2)]
    with profile(activities=BOTH) as result:
        for place in others:
            torch.ones(100, device=place).clone()
        for place in others:
            torch.accelerator.synchronize(place)
    result.export_chrome_trace(str(tmp_path / "trace.json"))
    works = Trace(tmp_path / "trace.json").of(*WORK)
    assert {event["pid"] for event in works} == {0, 1}
    assert all(event["args"]["device"] == event["pid"] for event in works)


def test_waits_are_calls(device, trace_of):
    x = torch.ones(8, device=device)
    event = torch.Event(device)

    def work() -> None:
        x.add_(1)
        event.record()
        event.synchronize()
        torch.accelerator.current_stream(device).synchronize()
        x.sum().item()

    names = [call["name"] for call in trace_of(work).of("privateuse1_runtime")]
    assert {"event_synchronize", "stream_synchronize", "device_synchronize"} <= set(names)


def test_backward_is_tied_to_its_thread(device, timed_operators, trace_of):
    x = torch.randn(32, 32, device=device, requires_grad=True)
    loss = (x @ x).sum()
    trace = trace_of(loss.backward)
    operators = {event["args"]["External id"]: event for event in trace.of("cpu_op")}
    products = [event for event in trace.of("kernel") if operators[event["args"]["External id"]]["name"] == "aten::mm"]
    assert len({event["args"]["External id"] for event in products}) == 2  # of one kernel or several each
    threads = {operators[event["args"]["External id"]]["tid"] for event in products}
    assert threads.isdisjoint({threading.get_native_id()})


def test_calls_stand_on_the_thread_that_made_them(device, timed, trace_of):
    x = torch.ones(64, device=device)
    numbers: list[int] = []

    def thread_body() -> None:
        numbers.append(threading.get_native_id())
        with module_of(device).stream(torch.Stream(device)):
            x.clone()

    def work() -> None:
        threads = [threading.Thread(target=thread_body) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    trace = trace_of(work)
    queued = trace.arrows("s").values()
    assert len(queued) == 4
    assert {event["tid"] for event in queued} == set(numbers)
    assert {event["pid"] for event in queued} == {os.getpid()}


def test_a_named_range_spans_its_work(device, timed_operators, tmp_path):
    x = torch.ones(1 << 14, device=device)
    torch.accelerator.synchronize(device)
    with profile(activities=BOTH) as result:
        x.add_(1)
        with record_function("my range"):
            x.mul_(2)
            x.sin_()
        x.cos_()
        torch.accelerator.synchronize(device)
    result.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = Trace(tmp_path / "trace.json")
    (span,) = trace.of("gpu_user_annotation")
    operators = {event["args"]["External id"]: event["name"] for event in trace.of("cpu_op")}
    works: dict[str, list[dict[str, Any]]] = {}
    for event in trace.of(*WORK):
        works.setdefault(operators[event["args"]["External id"]], []).append(event)
    before, *inside, after = (works[f"aten::{name}_"] for name in ("add", "mul", "sin", "cos"))
    assert span["name"] == "my range"
    assert span["ts"] >= max(map(end, before)) - 1 and end(span) <= min(event["ts"] for event in after) + 1
    for work in sum(inside, []):
        assert span["ts"] <= work["ts"] and end(span) >= end(work) - 1
    # It is the work's time once more, which no sum may count.
    rows = {(row.key, row.device_type): row for row in result.key_averages()}
    assert rows["my range", DeviceType.CPU].self_device_time_total == 0
    assert rows["my range", DeviceType.CPU].device_time_total > 0


def test_a_profile_that_stops_within_a_range(device, timed, trace_of):
    """The range's end is never reported, and the next profile must not continue the range."""
    x = torch.ones(1000, device=device)
    first = profile(activities=BOTH)
    first.start()
    with record_function("cut short"):
        x.clone()
        torch.accelerator.synchronize(device)
        first.stop()
    trace = trace_of(x.clone)
    assert not trace.of("gpu_user_annotation")
    assert len(trace.of(*WORK)) == 1


def test_without_the_device_nothing_of_it_is_recorded(device, tmp_path):
    x = torch.ones(8, device=device)
    with profile(activities=[ProfilerActivity.CPU]) as result:
        x.add_(1)
        torch.accelerator.synchronize(device)
    result.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = Trace(tmp_path / "trace.json")
    assert not trace.of(*WORK, "privateuse1_runtime")
    assert "aten::add_" in {event["name"] for event in trace.of("cpu_op")}


def test_profiles_have_nothing_of_each_other(device, timed, trace_of):
    x = torch.ones(1000, device=device)
    first = trace_of(x.clone)
    x.clone()
    second = trace_of(lambda: (x.clone(), x.clone()))
    assert len(first.of(*WORK)) == 1
    assert len(second.of(*WORK)) == 2
    assert set(second.arrows("s")) == {1, 2}, "numbers begin anew"


def test_a_schedule_records_its_steps(device, timed):
    x = torch.ones(1 << 20, device=device)  # some runtimes measure whole microseconds
    counts = []

    def ready(result: torch.profiler.profile) -> None:
        rows = {(row.key, row.device_type): row.count for row in result.key_averages()}
        counts.append(rows["aten::sin_", DeviceType.CPU])
        assert sum(event.self_device_time_total for event in result.key_averages()) > 0

    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(activities=BOTH, schedule=schedule, on_trace_ready=ready) as result:
        for _ in range(8):
            x.sin_()
            torch.accelerator.synchronize(device)
            result.step()
    assert counts == [2, 2]


def test_the_replay_of_a_graph_is_work(device, timed, trace_of):
    if not runs_operators(device):
        pytest.skip("capability: kernels, the host's or generated ones. Copies are not captured")
    module = module_of(device)
    x = torch.zeros(1000, device=device)
    graph = module.Graph()
    with module.graph(graph):
        x.add_(1)
        x.mul_(2)
    trace = trace_of(graph.replay)
    assert trace.of(*WORK)
    assert x[0].item() == 2


def test_a_capture_within_a_profile(device, trace_of):
    if not runs_operators(device):
        pytest.skip("capability: kernels, the host's or generated ones. Copies are not captured")
    module = module_of(device)
    x = torch.zeros(1000, device=device)
    graph = module.Graph()

    def work() -> None:
        with module.graph(graph):
            x.add_(1)
        graph.replay()

    trace_of(work)
    assert x[0].item() == 1


def test_an_error_leaves_the_profile_whole(device, timed, trace_of):
    x = torch.ones(4, device=device)

    def work() -> None:
        with pytest.raises(RuntimeError):
            torch.mm(x, x)
        with pytest.raises(IndexError):
            torch.randn(3, device=device)[torch.tensor([7], device=device)]
            torch.accelerator.synchronize(device)
        x.sin_()

    trace = trace_of(work)
    assert trace.of("kernel", "gpu_memcpy")
    assert not module_of(device).is_current_stream_capturing()


def test_memory_is_profiled_beside(device, timed):
    with profile(activities=BOTH, profile_memory=True) as result:
        x = torch.ones(1 << 20, device=device)
        torch.accelerator.synchronize(device)
        del x
    assert max(row.self_device_memory_usage for row in result.key_averages()) >= 4 << 20


def test_the_older_profiler_times_with_events(device, timed):
    x = torch.randn(256, 256, device=device)
    torch.accelerator.synchronize(device)
    with torch.autograd.profiler.profile(use_device=device.type) as result:
        x @ x
    rows = {row.key: row for row in result.key_averages()}
    assert rows["aten::mm"].device_time_total > 0
