# SPDX-License-Identifier: BSD-3-Clause
"""mode="reduce-overhead": which calls are captured, and replays return the results of generated code."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import torch_outboard
from torch_outboard import _C
from torch_outboard.compile import report
from torch_outboard.compile.generators import generators
from torch_outboard.testing.plugin import RunPython


@pytest.fixture(autouse=True)
def _fresh_counters() -> Iterator[None]:
    counters.clear()
    yield
    counters.clear()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Return the messages about captures so far. Torch's loggers pass none on once torch has set up its logs."""
    from torch._inductor.cudagraph_utils import cudagraphs_log

    messages: list[str] = []

    class RecordingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = RecordingHandler()
    cudagraphs_log.addHandler(handler)
    yield messages
    cudagraphs_log.removeHandler(handler)


def _replays() -> int:
    return counters["outboard"]["graph_replays"]


def _compile(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compile twice: with graphs, and without."""
    return torch.compile(function, mode="reduce-overhead", **options), torch.compile(function, **options)


def _check(device: torch.device, function: Callable[..., Any], *shapes: tuple[int, ...], replays: int = 4) -> None:
    """Compare on random inputs with all results kept to the end, and expect at least this many replays."""
    graphed, generated = _compile(function)
    results = []
    for _ in range(replays + 2):
        inputs = [torch.randn(shape, device=device) for shape in shapes]
        results.append((graphed(*inputs), generated(*inputs)))
    for got, want in results:
        torch.testing.assert_close(got, want, atol=0, rtol=0)
    assert _replays() >= replays


@pytest.mark.core
def test_values_and_memory_of_earlier_results(device: torch.device) -> None:
    _check(device, lambda x, y: (torch.softmax(x @ y, -1) * 2 + y.sum(), x.cos()), (8, 8), (8, 8))


def test_a_replay_dispatches_no_operator(device: torch.device) -> None:
    graphed, _ = _compile(lambda x: (x @ x).cos() @ x)
    x = torch.randn(4, 4, device=device)
    for _ in range(3):
        graphed(x)
    assert _replays() >= 1
    torch_outboard.reset_coverage()
    before = _C.host_counters()
    graphed(x)
    assert _C.host_counters() == before
    assert {row.op for row in torch_outboard.coverage()} <= {"aten::copy_", "aten::empty_strided"}


def test_outputs_that_share_memory_do_so_in_the_copies(device: torch.device) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x + 1
        return y, y[1:], y.t()

    graphed, _ = _compile(function)
    for _ in range(4):
        x = torch.randn(3, 3, device=device)
        whole, part, transposed = graphed(x)
        whole.zero_()
        assert not part.any() and not transposed.any()
    assert _replays() >= 2


def test_inputs_of_any_layout(device: torch.device) -> None:
    graphed, generated = _compile(lambda a, b, c, d: a + b * c + d)
    for _ in range(4):
        storage = torch.randn(64, device=device)
        inputs = (
            torch.randn(4, 4, device=device).t(),
            torch.randn(4, 1, device=device).expand(4, 4),
            storage.as_strided((4, 4), (2, 1), 3),  # rows overlap
            torch.randn(4, 9, device=device)[:, 1:8:2],
        )
        torch.testing.assert_close(graphed(*inputs), generated(*inputs), atol=0, rtol=0)
    assert _replays() >= 2


def test_an_input_that_is_returned_is_the_input(device: torch.device) -> None:
    graphed, _ = _compile(lambda x: (x, x * 2))
    for _ in range(4):
        x = torch.randn(3, device=device)
        same, _ = graphed(x)
        assert same is x or same.data_ptr() == x.data_ptr()


@pytest.mark.core
def test_each_size_is_captured_once(device: torch.device) -> None:
    graphed, generated = _compile(lambda x: (x * 3).sum(0) + x.shape[0], dynamic=True)
    for _ in range(4):
        for size in (5, 6, 7):
            x = torch.randn(size, 3, device=device)
            torch.testing.assert_close(graphed(x), generated(x), atol=0, rtol=0)
    assert counters["outboard"]["graph_captures"] == 3 and _replays() >= 6


@pytest.mark.parametrize("draw", ["dropout", "rand"])
def test_random_numbers_are_those_without_graphs(device: torch.device, draw: str) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.dropout(x, 0.5, True) if draw == "dropout" else x + torch.rand_like(x)

    x = torch.ones(64, device=device)
    drawn = []
    for compiled in _compile(function):
        torch.manual_seed(7)
        drawn.append([compiled(x).tolist() for _ in range(6)])
    assert drawn[0] == drawn[1]
    assert len({tuple(numbers) for numbers in drawn[0]}) == 6
    assert _replays() >= 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_training_step(device: torch.device, optimizer: str) -> None:
    torch.manual_seed(0)
    nets = [Net().to(device)]
    nets.append(copy.deepcopy(nets[0]))
    losses = []
    for net, mode in zip(nets, ("reduce-overhead", None), strict=True):
        compiled = torch.compile(net, mode=mode)
        step: torch.optim.Optimizer = (
            torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            if optimizer == "sgd"
            else torch.optim.Adam(net.parameters(), lr=1e-2)
        )
        torch.manual_seed(1)
        losses.append([])
        for _ in range(8):
            x, target = torch.randn(8, 1, 6, 6, device=device), torch.randint(10, (8,), device=device)
            step.zero_grad()
            loss = nn.functional.cross_entropy(compiled(x), target)
            loss.backward()
            step.step()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1]
    for got, want in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
        torch.testing.assert_close(got, want, atol=0, rtol=0)
    # The forward graph from the third step on at the latest, the backward graph from the fourth.
    assert counters["outboard"]["graph_captures"] == 2 and _replays() >= 10


@pytest.mark.core
def test_what_is_saved_is_not_overwritten(device: torch.device) -> None:
    """Two forward passes precede their backward passes: the second one must not overwrite what the first one saved."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4), nn.Sigmoid()).to(device)
    graphed, generated = _compile(net)
    batches = [torch.randn(5, 4, device=device) for _ in range(4)]

    def gradients(compiled: Callable[..., Tensor]) -> list[Tensor]:
        for _ in range(5):
            net.zero_grad()
            losses = [compiled(batch).square().sum() for batch in batches]
            for loss in reversed(losses):
                loss.backward()
        return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]

    want, got = gradients(generated), gradients(graphed)
    torch.testing.assert_close(got, want, atol=0, rtol=0)
    assert counters["outboard"]["graph_busy"] > 0 and _replays() > 0


def test_a_weight_changed_before_the_backward_pass_is_an_error_as_ever(device: torch.device) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight * self.weight.sin()

    net = Scale().to(device)
    for compiled in reversed(_compile(net)):
        for number in range(6):
            result = compiled(torch.randn(4, device=device)).sum()
            if number == 5:
                with torch.no_grad():
                    net.weight.add_(1)
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    result.backward()
            else:
                result.backward()
    assert _replays() > 0


def test_an_input_changed_before_the_backward_pass(device: torch.device) -> None:
    """A copy of the input keeps its gradient right, unless torch itself has saved the input and refuses."""
    graphed, _ = _compile(lambda x, weight: x * weight * weight)
    for _ in range(5):
        x, weight = torch.randn(4, device=device), torch.randn(4, device=device, requires_grad=True)
        want = 2 * x * weight.detach()
        result = graphed(x, weight).sum()
        if _replays():
            with torch.no_grad():
                weight.add_(1)
        try:
            result.backward()
        except RuntimeError as error:
            assert _replays() and "modified by an inplace operation" in str(error)
            continue
        torch.testing.assert_close(weight.grad, want)
    assert _replays() > 0


def test_other_weights_get_another_capture(device: torch.device) -> None:
    net = nn.Linear(3, 3, device=device)
    graphed, generated = _compile(net)
    x = torch.randn(2, 3, device=device)
    for _ in range(2):
        with torch.no_grad():
            for _ in range(4):
                torch.testing.assert_close(graphed(x), generated(x), atol=0, rtol=0)
            net.weight.data = torch.randn(3, 3, device=device)
    assert counters["outboard"]["graph_captures"] == 2


def test_another_stream_waits_for_the_last_one(device: torch.device) -> None:
    graphed, generated = _compile(lambda x: (x @ x).cos())
    streams = [torch.Stream(device) for _ in range(3)]
    x = torch.randn(64, 64, device=device)
    want = generated(x)
    torch.accelerator.synchronize()
    results = []
    for number in range(9):
        with streams[number % 3]:
            results.append(graphed(x))
    torch.accelerator.synchronize()
    for got in results:
        torch.testing.assert_close(got, want, atol=0, rtol=0)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="capability: torch 2.11's Inductor runs a graph on one stream",
)
@pytest.mark.parametrize("waits", [True, False])
def test_streams_within_are_not_captured(device: torch.device, waits: bool) -> None:
    side = torch.Stream(device)

    def function(x: Tensor) -> Tensor:
        y = x * 2
        if waits:
            side.wait_stream(torch.accelerator.current_stream())
        with side:
            z = y @ y if waits else torch.ones(16, 16, device=device) * 3
        if waits:
            torch.accelerator.current_stream().wait_stream(side)
        return z.cos() + y if waits else z

    with report() as result:
        graphed = torch.compile(function, mode="reduce-overhead")
        for _ in range(4):
            x = torch.randn(16, 16, device=device)
            got, want = graphed(x), function(x)
            torch.accelerator.synchronize()  # nothing waits for the side stream where `waits` is false
            torch.testing.assert_close(got, want)
    assert _replays() == 0
    assert "it uses " in result.graphs[0].capture


def test_saved_tensors_that_hooks_see_are_copied(device: torch.device) -> None:
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    graphed, _ = _compile(lambda x: (x.sin() * x).exp())
    for number in range(6):
        x = torch.randn(4, device=device, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = graphed(x)
        result.sum().backward()
        want = x.detach().cpu().requires_grad_()
        (want.sin() * want).exp().sum().backward()
        torch.testing.assert_close(x.grad.cpu(), want.grad)
        if number == 4:
            before = [tensor.clone() for tensor in packed]
    # All that was ever packed is held here, and none of it was written to.
    torch.testing.assert_close(packed[: len(before)], before, atol=0, rtol=0)
    assert _replays() >= 2


def test_threads(device: torch.device) -> None:
    graphed, generated = _compile(lambda x: (x @ x).sin() + x)
    inputs = [torch.randn(16, 16, device=device) for _ in range(4)]
    want = [generated(x) for x in inputs]
    graphed(inputs[0])
    failures: list[object] = []

    def work(index: int) -> None:
        try:
            with torch.Stream(device):
                for _ in range(20):
                    got = graphed(inputs[index])
                    torch.accelerator.current_stream().synchronize()
                    if not torch.equal(got.cpu(), want[index].cpu()):
                        failures.append(index)
        except BaseException as error:
            failures.append(error)

    torch.accelerator.synchronize()
    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_within_a_capture_of_the_user(device: torch.device) -> None:
    module = torch.get_device_module(device)
    graphed, _ = _compile(lambda x: x.cos() + 1)
    x = torch.zeros(4, device=device)
    for _ in range(3):
        graphed(x)
    before = _replays()
    graph = module.Graph()
    with module.graph(graph):
        result = graphed(x)
    graph.replay()
    assert result.tolist() == [2, 2, 2, 2] and _replays() == before


def _mutates(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def _waits(x: Tensor) -> Tensor:
    return torch.nonzero(x > 0).sum() + x.sum()


def _on_the_cpu(x: Tensor) -> Tensor:
    return x.cpu().cos().to(x.device) + x


@pytest.mark.core
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_mutates, "changes 1 of its inputs in place"),
        (_waits, "reads values on the host"),
        (_on_the_cpu, "the device cpu"),
    ],
)
def test_what_is_not_captured_runs_and_is_logged(
    device: torch.device,
    function: Callable[[Tensor], Tensor],
    reason: str,
    said: list[str],
) -> None:
    graphed = torch.compile(function, mode="reduce-overhead")
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        report() as result,
    ):
        for _ in range(4):
            values = torch.randn(6)
            here = values.to(device)
            torch.testing.assert_close(graphed(here).cpu(), function(values))
    assert [message for message in said if "is not captured: " in message and reason in message]
    assert _replays() == 0
    assert reason in result.graphs[0].capture


def test_a_reason_is_known_when_the_graph_comes_from_the_cache(device: torch.device) -> None:
    for state in ("compiled", "from the cache"):
        torch._dynamo.reset()
        with report() as result:
            torch.compile(_on_the_cpu, mode="reduce-overhead")(torch.ones(3, device=device))
        assert result.graphs[0].state == state
        assert "the device cpu" in result.graphs[0].capture


def test_an_operator_that_cannot_be_captured_ends_the_attempt(device: torch.device) -> None:
    @torch.library.custom_op("outboard_tests::peek", mutates_args=())
    def peek(x: Tensor) -> Tensor:
        return x + x.sum().item()

    @peek.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    with report() as result:
        graphed = torch.compile(lambda x: peek(x * 2) + 1, mode="reduce-overhead", fullgraph=True)
        for _ in range(5):
            assert graphed(torch.ones(2, device=device)).tolist() == [7, 7]
    assert _replays() == 0 and counters["inductor"]["cudagraph_skips"] == 1
    assert "item" in result.graphs[0].capture or "_local_scalar_dense" in result.graphs[0].capture


def test_a_refusal_can_be_an_error(device: torch.device) -> None:
    from torch._inductor import config

    with config.patch({"triton.cudagraph_or_error": True}), pytest.raises(Exception, match="is not captured"):
        torch.compile(_mutates, mode="reduce-overhead")(torch.ones(3, device=device))


@pytest.mark.parametrize("wrapper", ["cpp_wrapper", "fx_wrapper"])
@pytest.mark.parametrize("partitions", [True, False])
def test_the_other_wrappers(
    device: torch.device,
    wrapper: str,
    partitions: bool,
    said: list[str],
) -> None:
    """torch captures none of them, only graph_partition, its default, and says so; torch 2.11 captures none at all."""
    from torch._inductor import config

    if wrapper == "fx_wrapper" and partitions and generators().has_gpus:
        with (
            config.patch({wrapper: True}),
            pytest.raises(Exception, match="set torch._inductor.config.graph_partition"),
        ):
            torch.compile(torch.sin, mode="reduce-overhead")(torch.ones(3, device=device))
        return
    with config.patch({wrapper: True, "graph_partition": partitions}):
        graphed = torch.compile(lambda x, y: torch.softmax(x @ y, -1) * 2 + y.sum(), mode="reduce-overhead")
        for _ in range(4):
            x, y = torch.randn(8, 8), torch.randn(8, 8)
            want = torch.softmax(x @ y, -1) * 2 + y.sum()
            torch.testing.assert_close(graphed(x.to(device), y.to(device)).cpu(), want, atol=1e-4, rtol=1e-4)
    is_captured = not partitions and not torch.__version__.startswith("2.11.")
    assert (_replays() > 0) == is_captured
    assert any("skipping cudagraphs due to cpp" in message for message in said) != is_captured


def test_the_report_says_what_is_captured(device: torch.device) -> None:
    with report() as result:
        torch.compile(lambda x: x - 4, mode="reduce-overhead")(torch.ones(3, device=device))
        torch.compile(lambda x: x - 5)(torch.ones(3, device=device))
    assert [graph.capture for graph in result.graphs] == ["captured", ""]
    assert "inference graph, compiled, captured" in str(result)


SCHEDULED = """
import sys, torch, torch_outboard
torch_outboard.attach(sys.argv[1], schedule=sys.argv[2])
name = torch_outboard.attached_driver().name
from torch._dynamo.utils import counters

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
state = {key: value.clone() for key, value in net.state_dict().items()}
batches = [torch.randn(8, 16) for _ in range(8)]

def train(device, mode):
    net.load_state_dict(state)
    net.to(device)
    net.load_state_dict(state)
    forward = torch.compile(net, mode=mode) if mode else net
    step = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    streams = [torch.Stream(device) for _ in range(2)] if mode else []
    for number, batch in enumerate(batches):
        x = batch.to(device)
        def run():
            step.zero_grad()
            loss = forward(x).square().mean()
            loss.backward()
            step.step()
            losses.append(loss.detach())
        if streams:
            stream = streams[number // 3 % 2]
            stream.wait_stream(torch.accelerator.current_stream())
            x.record_stream(stream)
            with stream:
                run()
            torch.accelerator.current_stream().wait_stream(stream)
        else:
            run()
    return torch.stack(losses).cpu()

want = train("cpu", None)
got = train(name, "reduce-overhead")
torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
assert counters["outboard"]["graph_replays"] > 6, counters["outboard"]
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_training_in_every_schedule(run_python: RunPython, driver_target: str, seed: int) -> None:
    driver = torch_outboard.attached_driver()
    if driver is None or "schedule" not in driver.options:
        pytest.skip("capability: schedules that the test chooses")
    run_python(SCHEDULED, driver_target, f"lazy:{seed}")


@pytest.mark.core
def test_the_patch_is_needed(device: torch.device) -> None:
    from torch_outboard._compat.inductor import needs_capture_graphs

    # It has been applied, and asks a function that it leaves alone.
    assert needs_capture_graphs(), "torch captures graphs of every device: remove capture_graphs"
