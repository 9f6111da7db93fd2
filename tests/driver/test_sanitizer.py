# SPDX-License-Identifier: BSD-3-Clause
"""The stream sanitizer finds accesses that nothing orders, and only those."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from torch_outboard import sanitizer

from .support import module_of, reset_waits, runs_operators, waits


@pytest.fixture(autouse=True)
def watched(device: torch.device) -> Iterator[None]:
    torch.accelerator.synchronize(device)
    sanitizer.enable()
    try:
        yield
    finally:
        sanitizer.disable()


@pytest.fixture
def queued(device: torch.device) -> None:
    if not runs_operators(device):
        pytest.skip("capability: kernels, the host's or generated ones. Copies wait: nothing is left unordered")


@pytest.fixture
def streams(device: torch.device) -> tuple[torch.Stream, torch.Stream]:
    return torch.Stream(device), torch.Stream(device)


def test_a_read_that_nothing_orders_behind_a_write(device, queued, streams, capfd):
    module = module_of(device)
    first, second = streams
    with module.stream(first):
        x = torch.ones(16, device=device)
        x.mul_(2)
    with module.stream(second):
        y = x + 1
    assert len(sanitizer.races()) == 1
    race = sanitizer.races()[0]
    assert (race.first.op, race.second.op) == ("aten::mul_.Tensor", "aten::add.Tensor")
    assert race.first.is_write and not race.second.is_write
    assert race.first.stream == (device.index, first.stream_id)
    printed = capfd.readouterr().err
    assert "OUTBOARD_SANITIZER: a possible race" in printed
    assert "x.mul_(2)" in printed and "y = x + 1" in printed, "both stacks"
    del y


@pytest.mark.parametrize("kind", ["write after read", "write after write", "copy", "fill", "item"])
def test_every_kind_of_conflict(device, queued, streams, kind):
    module = module_of(device)
    x = torch.ones(16, device=device)
    torch.accelerator.synchronize()
    with module.stream(streams[0]):
        y = x.sum() if kind == "write after read" else x.mul_(2)
    with module.stream(streams[1]):
        if kind == "copy":
            torch.empty(16, device=device).copy_(x)
        elif kind == "fill":
            x.zero_()
        elif kind == "item":
            x[3].item()
        else:
            x.add_(1)
    assert len(sanitizer.races()) == 1
    del y


@pytest.mark.parametrize(
    "way", ["wait_stream", "event", "synchronize", "event.synchronize", "stream.synchronize", "item"]
)
def test_what_is_ordered_is_no_race(device, streams, way):
    module = module_of(device)
    first, second = streams
    event = torch.Event(device)
    with module.stream(first):
        x = torch.ones(16, device=device)
        x.mul_(2)
        event.record()
        if way == "item":
            x[0].item()
    if way == "wait_stream":
        second.wait_stream(first)
    elif way == "event":
        second.wait_event(event)
    elif way == "synchronize":
        torch.accelerator.synchronize()
    elif way == "event.synchronize":
        event.synchronize()
    elif way == "stream.synchronize":
        first.synchronize()
    with module.stream(second):
        x.add_(1)
    assert sanitizer.races() == []


def test_reads_on_two_streams_are_no_race(device, queued, streams):
    module = module_of(device)
    x = torch.ones(16, device=device)
    torch.accelerator.synchronize()
    for stream in streams:
        with module.stream(stream):
            x.sum()
    assert sanitizer.races() == []
    with module.stream(streams[0]):
        x.zero_()
    assert len(sanitizer.races()) == 1, "the write meets the read on the other stream"


def test_order_is_passed_on(device, streams):
    module = module_of(device)
    third = torch.Stream(device)
    with module.stream(streams[0]):
        x = torch.ones(16, device=device)
    streams[1].wait_stream(streams[0])
    third.wait_stream(streams[1])
    with module.stream(third):
        x.add_(1)
    assert sanitizer.races() == []


def test_memory_that_was_given_out_again_has_no_past(device, streams):
    module = module_of(device)
    for _ in range(20):
        with module.stream(streams[0]):
            x = torch.ones(16, device=device)
        streams[1].wait_stream(streams[0])
        with module.stream(streams[1]):
            x.add_(1)
            x.record_stream(streams[1])
        del x
    assert sanitizer.races() == []


def test_other_threads_and_backward_passes_are_watched(device, queued, streams):
    module = module_of(device)
    with module.stream(streams[0]):
        x = torch.ones(16, device=device, requires_grad=True)
        (x * x).sum().backward()

    def work() -> None:
        with module.stream(streams[1]):
            x.grad.add_(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(sanitizer.races()) == 1


def test_a_place_is_reported_once_and_it_can_raise(device, queued, streams):
    module = module_of(device)
    x = torch.ones(16, device=device)
    for _ in range(3):
        for stream in streams:
            with module.stream(stream):
                x.add_(1)
    assert 1 <= len(sanitizer.races()) <= 3
    torch.accelerator.synchronize()
    sanitizer.enable(is_raising=True)
    with module.stream(streams[0]):
        x.add_(1)
    with pytest.raises(sanitizer.StreamRaceError, match="possible race"), module.stream(streams[1]):
        x.add_(1)


def test_a_training_step_has_no_race(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 8).to(device, non_blocking=True)).square().mean().backward()
        optimizer.step()
    assert sanitizer.races() == []


@pytest.fixture
def pinned(device: torch.device) -> torch.Tensor:
    tensor = torch.zeros(16).pin_memory()
    if not tensor.is_pinned():
        pytest.skip("capability: pinned memory")
    reset_waits()
    tensor.copy_(torch.zeros(16, device=device), non_blocking=True)
    if waits():
        pytest.skip("capability: copies to pinned memory that do not wait")
    torch.accelerator.synchronize(device)
    sanitizer.enable()
    return tensor


@pytest.mark.parametrize("is_recorded", [False, True])
def test_memory_that_an_unrecorded_stream_still_uses(device, queued, streams, is_recorded):
    module = module_of(device)
    out = torch.zeros(4096, device=device)
    x = torch.ones(4096, device=device)
    streams[0].wait_stream(module.current_stream())
    with module.stream(streams[0]):
        out.copy_(x)
    if is_recorded:
        x.record_stream(streams[0])
    address = x.data_ptr()
    del x
    y = torch.full((4096,), 2.0, device=device)
    assert is_recorded or y.data_ptr() == address
    races = sanitizer.races()
    assert [race.kind for race in races] == ([] if is_recorded else ["reuse"])
    if races:
        assert "`tensor.record_stream(stream)` after test_sanitizer.py" in races[0].remedy


def test_the_host_meets_a_copy(device, pinned):
    x = torch.ones(16, device=device)
    pinned.copy_(x, non_blocking=True)
    pinned.sum()
    (race,) = sanitizer.races()
    assert race.kind == "host" and race.second.op == "aten::sum" and race.first.is_write
    assert "synchronize()" in race.remedy and "test_sanitizer.py" in race.remedy
    torch.accelerator.synchronize(device)
    x.copy_(pinned, non_blocking=True)
    pinned.sum()  # both read
    assert len(sanitizer.races()) == 1
    pinned.zero_()
    assert [(race.kind, race.second.op) for race in sanitizer.races()[1:]] == [("host", "aten::zero_")]


def test_the_host_may_use_another_part_of_pinned_memory(device, pinned):
    x = torch.ones(8, device=device)
    x.copy_(pinned[:8], non_blocking=True)
    pinned[8:].fill_(1)
    pinned.view(2, 8).size()
    assert sanitizer.races() == []
    event = torch.Event(device)
    event.record()
    event.synchronize()
    pinned.fill_(2)
    assert sanitizer.races() == []


def test_nothing_waits_for_a_copy_to_the_host(device, pinned):
    pinned.copy_(torch.ones(16, device=device), non_blocking=True)
    assert sanitizer.races() == []
    sanitizer.finish()
    assert [race.kind for race in sanitizer.races()] == ["unwaited"]
    sanitizer.enable()
    pinned.copy_(torch.ones(16, device=device), non_blocking=True)
    torch.accelerator.synchronize(device)
    sanitizer.finish()
    assert sanitizer.races() == []


@pytest.mark.parametrize("way", ["halves", "columns", "overlap", "crossed"])
def test_parts_of_one_storage(device, queued, streams, way):
    module = module_of(device)
    x = torch.zeros(8, 8, device=device)
    torch.accelerator.synchronize(device)
    first, second = {
        "halves": (x[:4], x[4:]),
        "columns": (x[:, :4], x[:, 4:]),
        "overlap": (x[:5], x[4:]),
        "crossed": (x[:, :5], x[:, 4:]),
    }[way]
    with module.stream(streams[0]):
        first.add_(1)
    with module.stream(streams[1]):
        second.add_(1)
    assert len(sanitizer.races()) == (1 if way in ("overlap", "crossed") else 0)


@pytest.mark.parametrize("waits", [False, True])
def test_a_replay_uses_what_was_captured(device, queued, streams, waits):
    module = module_of(device)
    x = torch.ones(16, device=device)
    torch.accelerator.synchronize(device)
    graph = module.Graph()
    with module.graph(graph):
        y = x * 2
    assert sanitizer.races() == []
    graph.replay()
    if waits:
        streams[0].wait_stream(module.current_stream())
    with module.stream(streams[0]):
        x.zero_()
    assert [race.first.op for race in sanitizer.races()] == ([] if waits else ["the replay of a graph"])
    torch.accelerator.synchronize(device)
    del y


@pytest.mark.parametrize("waits", [False, True])
def test_graphs_of_one_pool_share_its_memory(device, queued, streams, waits):
    """The second graph's temporary tensor lies where the first graph's was, so their replays must not overlap."""
    module = module_of(device)
    x = torch.ones(16, device=device)
    torch.accelerator.synchronize(device)
    graphs = module.Graph(), module.Graph()
    with module.graph(graphs[0]):
        y = (x * 2) + 1
    with module.graph(graphs[1], pool=graphs[0].pool()):
        z = (x * 3) + 1
    assert sanitizer.races() == []
    graphs[0].replay()
    if waits:
        streams[0].wait_stream(module.current_stream())
    with module.stream(streams[0]):
        graphs[1].replay()
    assert [race.kind for race in sanitizer.races()] == ([] if waits else ["order"])
    torch.accelerator.synchronize(device)
    del y, z


def test_one_missing_wait_is_one_report(device, queued, streams):
    module = module_of(device)
    with module.stream(streams[0]):
        x, y = torch.ones(16, device=device), torch.ones(16, device=device)
        x.mul_(2)
        y.mul_(2)
    with module.stream(streams[1]):
        x + 1
        y + 1
    assert len(sanitizer.races()) == 1


def test_a_backward_pass_names_its_call(device, queued, streams):
    module = module_of(device)
    x = torch.ones(16, device=device, requires_grad=True)
    torch.accelerator.synchronize(device)
    with module.stream(streams[0]):
        (x * x).sum().backward()
    with module.stream(streams[1]):
        x.grad.add_(1)
    (race,) = sanitizer.races()
    assert race.first.place is not None and race.first.place[0] == __file__
