# SPDX-License-Identifier: BSD-3-Clause
"""Graphs: capture of a stream's work and its replay."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_outboard import CaptureError, NotSupportedError

from .support import (
    generates_kernels,
    has_entry,
    module_of,
    pinned,
    reaches_memory,
    runs_operators,
    skip_unless_graphs_draw,
)


@pytest.fixture
def module(device: torch.device) -> Any:
    if not runs_operators(device):
        pytest.skip("capability: kernels, the host's or generated ones. Copies are not captured")
    return module_of(device)


def test_a_copy_on_the_cpu_is_refused_by_name(device: torch.device) -> None:
    if reaches_memory(device):
        return  # no operator runs on a copy
    module = module_of(device)
    x = torch.ones(4, device=device)
    # One that a driver may have no kernel for, and for which none is generated.
    with torch.library._scoped_library("copied", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda tensor: tensor * 2, "CPU")
        with pytest.raises(CaptureError, match="copied::twice, which runs on a copy"), module.graph(module.Graph()):
            torch.ops.copied.twice(x)
        assert torch.ops.copied.twice(x).tolist() == [2.0] * 4
    assert x.tolist() == [1.0] * 4


def test_replay_reads_the_inputs_anew(module: Any, device: torch.device) -> None:
    x = torch.zeros(1000, device=device)
    graph = module.Graph()
    with module.graph(graph):
        assert module.is_current_stream_capturing()
        y = (x * 2 + 1).relu_()
        total = y.sum()
    assert not module.is_current_stream_capturing()
    for value in (1.0, -3.0, 2.5):
        x.fill_(value)
        graph.replay()
        expected = max(2 * value + 1, 0.0)
        assert torch.equal(y.cpu(), torch.full((1000,), expected))
        assert total.item() == 1000 * expected


def test_indices_are_read_at_each_replay(module: Any, device: torch.device) -> None:
    x, index = torch.randn(9, 4, device=device), torch.tensor([1, 2, 3], device=device)
    graph = module.Graph()
    with module.graph(graph):
        y = x[index] * 2
    for numbers in ([8, 0, 4], [5, 5, 5]):
        index.copy_(torch.tensor(numbers))
        graph.replay()
        torch.testing.assert_close(y.cpu(), x.cpu()[numbers] * 2)


def test_nothing_runs_while_capturing(module: Any, device: torch.device) -> None:
    x = torch.zeros(3, device=device)
    graph = module.Graph()
    with module.graph(graph):
        x.add_(1)
        x.fill_(7)
        x.add_(1)
    assert x.tolist() == [0, 0, 0]
    graph.replay()
    assert x.tolist() == [8, 8, 8]


def test_views_in_place_and_copies(module: Any, device: torch.device) -> None:
    x = torch.arange(12.0, device=device).view(3, 4)
    graph = module.Graph()
    with module.graph(graph):
        x[:, 1].mul_(2)
        x.t()[0].copy_(x[:3, 2])
        y = x.clone().t().contiguous()
    reference = torch.arange(12.0).view(3, 4)
    for _ in range(2):
        reference[:, 1].mul_(2)
        reference.t()[0].copy_(reference[:3, 2])
        graph.replay()
        assert torch.equal(y.cpu(), reference.t())


def test_many_replays_in_a_row(module: Any, device: torch.device) -> None:
    x = torch.zeros(64, dtype=torch.int64, device=device)
    graph = module.Graph()
    with module.graph(graph):
        for _ in range(5):
            x.add_(1)
    for _ in range(100):
        graph.replay()
    assert x.unique().tolist() == [500]


def test_replays_on_several_streams_wait_for_each_other(module: Any, device: torch.device) -> None:
    x = torch.zeros(1 << 16, device=device)
    graph = module.Graph()
    with module.graph(graph):
        x.mul_(2).add_(1)
    module.synchronize()
    streams = [module.Stream() for _ in range(4)]
    for index in range(20):
        with module.stream(streams[index % 4]):
            graph.replay()
    module.synchronize()
    assert x.eq(2.0**20 - 1).all()


def test_the_pool_keeps_what_the_graph_made(module: Any, device: torch.device) -> None:
    x = torch.ones(1 << 18, device=device)
    graph = module.Graph()
    with module.graph(graph):
        y = x + 1
        z = y * 3
    address = z.data_ptr()
    del y
    others = [torch.full((1 << 18,), float(value), device=device) for value in range(4)]
    graph.replay()
    assert z.data_ptr() == address
    assert z.eq(6).all()
    assert all(result.eq(value).all() for value, result in enumerate(others))


def test_memory_goes_back_after_reset(module: Any, device: torch.device) -> None:
    module.empty_cache()
    before = module.memory_reserved()
    graph = module.Graph()
    x = torch.ones(1 << 20, device=device)
    with module.graph(graph):
        y = x * 2
    graph.replay()
    del x, y
    module.synchronize()
    module.empty_cache()
    assert module.memory_reserved() > before, "the graph's pool is in use"
    graph.reset()
    module.empty_cache()
    assert module.memory_reserved() == before


def test_memory_goes_back_when_a_graph_is_dropped(module: Any, device: torch.device) -> None:
    module.empty_cache()
    before = module.memory_reserved()
    graph = module.Graph()
    with module.graph(graph):
        y = torch.ones(1 << 20, device=device) * 2
    for _ in range(10):
        graph.replay()
    del graph, y
    gc.collect()
    module.synchronize()
    module.empty_cache()
    assert module.memory_reserved() == before


def test_graphs_share_a_pool(module: Any, device: torch.device) -> None:
    first, second = module.Graph(), module.Graph()
    x = torch.ones(1 << 16, device=device)
    with module.graph(first, pool=module.graph_pool_handle()):
        y = x + 1
    with module.graph(second, pool=first):
        z = y * 2
    assert first.pool() == second.pool()
    x.fill_(4)
    first.replay()
    second.replay()
    assert z.eq(10).all()


def test_captures_that_share_a_pool_end_one_by_one(module: Any, device: torch.device) -> None:
    pool = module.graph_pool_handle()
    streams = module.Stream(), module.Stream()
    graphs = module.Graph(), module.Graph()
    x = torch.full((1 << 18,), 3.0, device=device)
    module.synchronize()
    for stream, graph in zip(streams, graphs, strict=True):
        with module.stream(stream):
            graph.capture_begin(pool)
    with module.stream(streams[0]):
        first = x + 1
        graphs[0].capture_end()
    with module.stream(streams[1]):
        temporary = x * 2  # the other graph's still, though the first has ended
        second = temporary + 1
        del temporary
        graphs[1].capture_end()
        others = [torch.full((1 << 18,), 5.0, device=device) for _ in range(4)]
    module.synchronize()
    graphs[1].replay()
    module.synchronize()
    assert second.eq(7).all() and first.numel() == 1 << 18
    assert all(result.eq(5).all() for result in others)


@pytest.mark.parametrize("draw", ["rand", "dropout", "bernoulli_", "randperm"])
def test_random_numbers_are_fresh_and_those_of_eager_runs(module: Any, device: torch.device, draw: str) -> None:
    skip_unless_graphs_draw(device)
    ones = torch.ones(256, device=device)
    calls: dict[str, Callable[[], Tensor]] = {
        "rand": lambda: torch.rand(256, device=device),
        "dropout": lambda: torch.dropout(ones, 0.5, True),
        "bernoulli_": lambda: torch.empty(256, device=device).bernoulli_(0.5),
        "randperm": lambda: torch.randperm(256, device=device),
    }
    torch.manual_seed(11)
    expected = [(calls[draw]().cpu(), calls[draw]().cpu()) for _ in range(3)]
    torch.manual_seed(11)
    graph = module.Graph()
    with module.graph(graph):
        first, second = calls[draw](), calls[draw]()
    for wanted, wanted_second in expected:
        graph.replay()
        assert torch.equal(first.cpu(), wanted)
        assert torch.equal(second.cpu(), wanted_second)
    assert not torch.equal(expected[0][0], expected[1][0])


def test_replay_follows_a_new_seed_and_its_own_generator(module: Any, device: torch.device) -> None:
    skip_unless_graphs_draw(device)
    generator = torch.Generator(device)
    graph = module.Graph()
    with module.graph(graph):
        own_numbers = torch.rand(8, device=device, generator=generator)
        default = torch.rand(8, device=device)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        generator.manual_seed(4)
        graph.replay()
        results.append((own_numbers.tolist(), default.tolist()))
    assert results[0] == results[1]
    assert results[0][0] != results[0][1]


def test_seeding_in_a_capture_is_refused(module: Any, device: torch.device) -> None:
    graph = module.Graph()
    with pytest.raises(CaptureError, match="manual_seed cannot be captured"), module.graph(graph):
        module.manual_seed(1)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("item", lambda x: x.sum().item()),
        ("nonzero", lambda x: x.nonzero()),
        ("masked_select", lambda x: x[x > 0]),
        ("copy between host and device", lambda x: x.cpu()),
        ("copy between host and device", lambda x: torch.ones(4).to(x.device)),
        ("aten::index.Tensor", lambda x: x[torch.tensor([0, 1])]),
        ("synchronizing a device", lambda x: torch.accelerator.synchronize()),
        ("synchronizing a capturing stream", lambda x: torch.accelerator.current_stream().synchronize()),
        ("querying a capturing stream", lambda x: torch.accelerator.current_stream().query()),
    ],
)
def test_what_cannot_be_captured(
    module: Any, device: torch.device, name: str, call: Callable[[Tensor], object]
) -> None:
    x = torch.ones(4, device=device)
    graph = module.Graph()
    if name == "masked_select":
        name = "nonzero|index"
    if "nonzero" in name and generates_kernels(device):
        name = r"item\(\)"  # it is made of a count, which is read, and of what fills as many
    with pytest.raises(CaptureError, match=name), module.graph(graph):
        call(x)
    # The process is fine: eager work, and another capture with the same objects.
    assert (x + 1).tolist() == [2, 2, 2, 2]
    with module.graph(graph):
        y = x + 2
    graph.replay()
    assert y.tolist() == [3, 3, 3, 3]


def test_a_failed_capture_takes_no_more_work(module: Any, device: torch.device) -> None:
    x = torch.ones(4, device=device)
    graph = module.Graph()
    with module.stream(module.Stream()):
        graph.capture_begin()
        with pytest.raises(CaptureError, match=r"item\(\).*cannot be captured"):
            x.sum().item()
        with pytest.raises(CaptureError, match=r"has failed and accepts no more work: item\(\)"):
            x.add_(1)
        with pytest.raises(CaptureError, match=r"was not captured: item\(\)"):
            graph.capture_end()
        with pytest.raises(CaptureError, match="no graph has been captured"):
            graph.replay()
    assert x.tolist() == [1, 1, 1, 1]


def test_an_error_in_the_block_ends_the_capture(module: Any, device: torch.device) -> None:
    graph = module.Graph()
    with pytest.raises(ZeroDivisionError), module.graph(graph):
        torch.ones(4, device=device)
        _ = 1 // 0
    assert not module.is_current_stream_capturing()
    with module.graph(graph):
        y = torch.ones(4, device=device) + 1
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]


def test_nested_and_mismatched_captures(module: Any, device: torch.device) -> None:
    first, second = module.Graph(), module.Graph()
    stream, other_stream = module.Stream(), module.Stream()
    with pytest.raises(CaptureError, match="default stream"):
        first.capture_begin()
    with pytest.raises(CaptureError, match="capture_end was called without capture_begin"):
        first.capture_end()
    with pytest.raises(CaptureError, match="no memory pool before its capture"):
        first.pool()
    with pytest.raises(ValueError, match="capture_error_mode"):
        first.capture_begin(capture_error_mode="never")
    with module.stream(stream):
        first.capture_begin()
        with pytest.raises(CaptureError, match="already being captured"):
            first.capture_begin()
        with pytest.raises(CaptureError, match="is already capturing a graph"):
            second.capture_begin()
        y = torch.ones(4, device=device) + 1
        with module.stream(other_stream), pytest.raises(CaptureError, match="on the stream where it began"):
            first.capture_end()
        first.capture_end()
        with pytest.raises(CaptureError, match="has already been captured"):
            first.capture_begin()
    first.replay()
    assert y.tolist() == [2, 2, 2, 2]


def test_a_replay_is_not_captured(module: Any, device: torch.device) -> None:
    first, second = module.Graph(), module.Graph()
    with module.graph(first):
        torch.ones(4, device=device)
    with pytest.raises(CaptureError, match="replay of a graph cannot be captured"), module.graph(second):
        first.replay()


def test_other_streams_join_by_events(module: Any, device: torch.device) -> None:
    x = torch.zeros(1 << 12, device=device)
    side = module.Stream()
    graph = module.Graph()
    with module.graph(graph):
        y = x + 1
        side.wait_stream(torch.accelerator.current_stream())
        with module.stream(side):
            assert module.is_current_stream_capturing()
            z = y * 10
        torch.accelerator.current_stream().wait_stream(side)
        result = z + y
    with module.stream(side):
        assert not module.is_current_stream_capturing()
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        assert result.unique().tolist() == [11 * (value + 1)]


def test_work_that_is_not_joined_is_an_error(module: Any, device: torch.device) -> None:
    x = torch.zeros(16, device=device)
    side = module.Stream()
    with pytest.raises(CaptureError, match="does not wait for its work"), module.graph(module.Graph()):
        side.wait_stream(torch.accelerator.current_stream())
        with module.stream(side):
            x.add_(1)
    with module.stream(side):
        assert not module.is_current_stream_capturing()
        assert (x + 1).tolist() == [1.0] * 16


def test_events_of_a_capture(module: Any, device: torch.device) -> None:
    outside, inside = torch.Event(device), torch.Event(device)
    outside.record()
    with (
        pytest.raises(CaptureError, match="recorded outside the capture"),
        module.graph(module.Graph()),
    ):
        torch.accelerator.current_stream().wait_event(outside)
    with pytest.raises(CaptureError, match=r"query\(\) of an event"), module.graph(module.Graph()):
        inside.record()
        inside.query()
    with pytest.raises(CaptureError, match=r"synchronize\(\) cannot use an event"):
        inside.synchronize()
    with pytest.raises(CaptureError, match="that capture has ended"):
        torch.accelerator.current_stream().wait_event(inside)
    inside.record()
    inside.synchronize()
    assert inside.query()


def test_other_threads_and_streams_go_on(module: Any, device: torch.device) -> None:
    graph = module.Graph()
    results: list[list[float]] = []

    def work() -> None:
        x = torch.ones(4, device=device)
        results.append((x * 3).tolist())

    with module.graph(graph, capture_error_mode="thread_local"):
        y = torch.ones(4, device=device) + 1
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        y.mul_(2)
    assert results == [[3.0] * 4]
    graph.replay()
    assert y.tolist() == [4.0] * 4


def test_relaxed_mode_lets_the_device_be_waited_for(module: Any, device: torch.device) -> None:
    graph = module.Graph()
    with module.graph(graph, capture_error_mode="relaxed"):
        y = torch.ones(4, device=device) + 1
        torch.accelerator.synchronize()
    graph.replay()
    assert y.tolist() == [2.0] * 4


def test_pinned_memory_is_read_at_each_replay(module: Any, device: torch.device) -> None:
    if not has_entry("host_alloc"):
        pytest.skip("capability: host_alloc. The driver pins no host memory")
    host = pinned(8)
    back = pinned(8)
    x = torch.zeros(8, device=device)
    graph = module.Graph()
    with module.graph(graph):
        x.copy_(host, non_blocking=True)
        x.mul_(2)
        back.copy_(x, non_blocking=True)
    for value in (3.0, 5.0):
        host.fill_(value)
        graph.replay()
        module.synchronize()
        assert back.tolist() == [2 * value] * 8


def test_an_error_of_captured_work_comes_at_the_next_wait(module: Any, device: torch.device) -> None:
    index = torch.zeros(2, dtype=torch.int64, device=device)
    source = torch.arange(4.0, device=device)
    graph = module.Graph()
    with module.graph(graph):
        picked = source.index_select(0, index)
    graph.replay()
    module.synchronize()
    index.fill_(9)
    with pytest.raises((IndexError, RuntimeError), match="index_select"):
        graph.replay()  # raises itself where host work is not queued
        module.synchronize()
    index.fill_(3)
    graph.replay()
    assert picked.tolist() == [3.0, 3.0]


def test_across_devices(module: Any, device: torch.device, second_device: torch.device) -> None:
    x = torch.ones(64, device=device)
    graph = module.Graph()
    elsewhere = torch.Stream(second_device)
    with module.graph(graph):
        here = torch.accelerator.current_stream()
        doubled = x * 2
        elsewhere.wait_stream(here)
        with elsewhere:
            there = doubled.to(second_device, non_blocking=True) + 1
        here.wait_stream(elsewhere)
        with elsewhere:
            back = there.to(device, non_blocking=True)
        here.wait_stream(elsewhere)
        y = back * 10
    for value in (1.0, 4.0):
        x.fill_(value)
        graph.replay()
        assert y.unique().tolist() == [10 * (2 * value + 1)]


def test_debug_dump_names_the_operators(module: Any, device: torch.device, tmp_path: Path) -> None:
    graph = module.Graph()
    with module.graph(graph):
        torch.ones(4, device=device).mul_(2)
    try:
        graph.debug_dump(tmp_path / "graph.dot")
    except NotSupportedError:
        assert has_entry("graph_capture_begin"), "only what the driver captures is not to be seen"
        return
    assert "aten::mul" in (tmp_path / "graph.dot").read_text()


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="torch.accelerator.Graph came with torch 2.12")
def test_accelerator_graph(module: Any, device: torch.device) -> None:
    skip_unless_graphs_draw(device)
    x = torch.zeros(16, device=device)
    graph = torch.accelerator.Graph()
    with torch.Stream(device), graph:
        y = x + 1
        z = torch.rand(4, device=device)
    x.fill_(2)
    graph.replay()
    first = z.tolist()
    assert y.tolist() == [3.0] * 16
    graph.replay()
    assert z.tolist() != first
    second = torch.accelerator.Graph(pool=graph.pool())
    with torch.Stream(device), second:
        w = y * 2
    second.replay()
    assert w.tolist() == [6.0] * 16
    graph.reset()
    with pytest.raises(CaptureError, match="no graph has been captured"):
        graph.replay()


def test_make_graphed_callables(module: Any, device: torch.device) -> None:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(8, 16), nn.Tanh()).to(device)
    second = nn.Linear(16, 4).to(device)
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
    x = torch.randn(5, 8, device=device, requires_grad=True)
    h = torch.randn(5, 16, device=device, requires_grad=True)
    graphed = module.make_graphed_callables((first, second), ((x,), (h,)))
    for _ in range(3):
        data = torch.randn(5, 8, device=device)
        mine, theirs = data.clone().requires_grad_(), data.clone().requires_grad_()
        graphed[1](graphed[0](mine)).square().sum().backward()
        eager(theirs).square().sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=0)
    for ours, reference in zip([*first.parameters(), *second.parameters()], eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, reference.grad, rtol=0, atol=0)
    first.eval()
    assert first(torch.randn(2, 8, device=device)).shape == (2, 16), "in the other mode it runs eagerly"


def test_graphed_callables_give_detached_outputs_as_they_are(module: Any, device: torch.device) -> None:
    class TwoOutputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x * self.weight, x.detach() * 2

    model = TwoOutputs().to(device)
    x = torch.ones(3, device=device, requires_grad=True)
    graphed = module.make_graphed_callables(model, (x,))
    assert [output.requires_grad for output in graphed(x)] == [True, False]


def test_make_graphed_callables_refuses(module: Any, device: torch.device) -> None:
    x = torch.ones(4, 8, device=device)
    hooked = nn.Linear(8, 4).to(device)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="hooks"):
        module.make_graphed_callables(hooked, (x,))
    with pytest.raises(ValueError, match="2 callables"):
        module.make_graphed_callables((torch.relu, torch.relu), ((x,),))
    with pytest.raises(TypeError, match="only tensors"):
        module.make_graphed_callables(torch.relu, (3,))
    with pytest.raises(RuntimeError, match="cache"), torch.autocast(device.type, dtype=torch.bfloat16):
        module.make_graphed_callables(nn.Linear(8, 4).to(device), (x,))
