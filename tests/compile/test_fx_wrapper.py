# SPDX-License-Identifier: BSD-3-Clause
"""`fx_wrapper`: a compiled function is a graph of torch.fx that runs and that tools can read."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from torch_outboard.compile.fx.kernel import CompiledKernel

from .conftest import Compare

torch.manual_seed(3)
X = torch.randn(32, 48)
Y = torch.randn(32, 48)


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.fx.GraphModule]]:
    """Return the graphs made so far, the newest last."""
    from torch_outboard.compile.fx.wrapper import OutboardFxWrapper

    recorded: list[torch.fx.GraphModule] = []
    compile_graph = OutboardFxWrapper.compile_graph

    def record(self: OutboardFxWrapper, gm: torch.fx.GraphModule) -> Callable[..., Any]:
        recorded.append(gm)
        return compile_graph(self, gm)

    monkeypatch.setattr(OutboardFxWrapper, "compile_graph", record)
    with config.patch(fx_wrapper=True):
        yield recorded


@pytest.mark.core
def test_values(compare: Compare) -> None:
    compare(lambda x, y: (F.gelu(x) * y + 1, x.softmax(-1), (x.t() + 1).sum(0), x.argmax()), X, Y)


def test_operators_without_a_kernel_of_inductors(compare: Compare) -> None:
    compare(lambda x: ((x @ x.t() + 1).cos() @ x, x.topk(3)[0], x.sort(1)[1]), X, tolerance=1e-3)


def test_views_of_inputs_and_of_results(compare: Compare) -> None:
    compare(lambda x: (x.t().contiguous() + 1, x[1:, ::2] * 2, x.exp().t()[2:5], x.view(torch.int32) + 1), X)


@pytest.mark.core
def test_mutation(compare: Compare) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        y[:, 1:3].mul_(2)
        y.index_put_((i,), x[:3], accumulate=True)
        x.scatter_(0, i[1:, None].expand(2, 48), y[:2])
        return x.sum()

    compare(function, X, Y, torch.tensor([1, 5, 1]), tolerance=1e-3)


def test_indexing(compare: Compare) -> None:
    compare(lambda x, i: (x[i], F.embedding(i, x), x.index_add(0, i, x[:5])), X, torch.tensor([1, 3, 5, 3, 1]))


def test_training(compare: Compare) -> None:
    compare(
        lambda x, w, b: F.layer_norm(torch.relu(x @ w + b), (8,)).square(),
        X.clone().requires_grad_(),
        torch.randn(48, 8, requires_grad=True),
        torch.randn(8, requires_grad=True),
        tolerance=1e-3,
    )


def test_numbers_and_copies_between_devices(compare: Compare) -> None:
    compare(lambda s, x: (s * x, x * (s + 1).cos(), x.to("cpu") * 2), torch.tensor(2.5), X)


@pytest.mark.core
def test_dynamic_shapes(device: torch.device, graphs: list[torch.fx.GraphModule]) -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return (F.gelu(x)[:, :n] @ x[:n]).sum(-1) * n + x.shape[0]

    compiled = torch.compile(function, dynamic=True, fullgraph=True)
    for rows, n in ((3, 2), (17, 9), (64, 31), (5, 4)):
        x = torch.randn(rows, rows)
        torch.testing.assert_close(compiled(x.to(device), n).cpu(), function(x, n), atol=1e-3, rtol=1e-4)
    assert len(graphs) == 1


def test_a_size_that_depends_on_values(compare: Compare) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compare(lambda x: (x.nonzero() + 1, x[x > 0] * 2), X)


def test_a_graph_within_a_graph(device: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.cos() + 1, lambda x: x.sin() - 1, (x,))

    compiled = torch.compile(function, fullgraph=True)
    for x in (torch.ones(4), -torch.ones(4)):
        torch.testing.assert_close(compiled(x.to(device)).cpu(), function(x))


def test_random_numbers_follow_the_seed(device: torch.device) -> None:
    compiled = torch.compile(lambda x: x + torch.rand_like(x), fullgraph=True)
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(compiled(torch.zeros(8, device=device)).cpu())
    assert torch.equal(*results) and results[0].unique().numel() > 1


def test_the_second_device(second_device: torch.device, graphs: list[torch.fx.GraphModule]) -> None:
    """The device's index is in the graph, even if another device is current."""
    result = torch.compile(lambda x: (x * 2).softmax(-1) @ x.t(), fullgraph=True)(X.to(second_device))
    assert result.device == second_device
    torch.testing.assert_close(result.cpu(), (X * 2).softmax(-1) @ X.t(), atol=1e-3, rtol=1e-4)
    allocations = [node for node in graphs[-1].graph.nodes if node.target is torch.empty_strided]
    assert allocations and {node.kwargs["device"] for node in allocations} == {second_device}


@pytest.mark.core
def test_what_a_tool_reads(device: torch.device, graphs: list[torch.fx.GraphModule]) -> None:
    torch.compile(lambda x, y: F.gelu(x) @ y.t(), fullgraph=True)(X.to(device), Y.to(device))
    (gm,) = graphs
    gm.graph.lint()
    kernels = [node for node in gm.graph.nodes if node.op == "call_module"]
    (kernel,) = kernels
    assert kernel.target.partition("_fused_")[2] in ("gelu_0", "0")
    module = gm.get_submodule(kernel.target)
    assert isinstance(module, CompiledKernel)
    # Triton's kernels also take the number of elements.
    assert all(kind.endswith("*") for kind in module.types[:2]) and "0.7071067" in module.definition
    assert [argument.op for argument in kernel.args[:2]] == ["placeholder", "call_function"]
    operators = [node.target for node in gm.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert operators == [torch.ops.aten.mm.out]
    text = gm.print_readable(print_output=False)
    assert f"self.{kernel.target}(" in text and "torch.ops.aten.mm.out(" in text
    assert repr(module) == f"CompiledKernel({', '.join(module.types)})"


def test_passes_leave_the_kernels(device: torch.device, graphs: list[torch.fx.GraphModule]) -> None:
    """Kernels return nothing and write to their arguments, so passes must not remove them."""
    compiled = torch.compile(lambda x: x.cos() + 1, fullgraph=True)
    x = X.to(device)
    want = compiled(x)
    gm = copy.deepcopy(graphs[-1])
    gm.graph.eliminate_dead_code()
    gm.recompile()
    assert torch.equal(torch.fx.Interpreter(gm).run(x), want)
    FakeTensorProp(gm).propagate(x)
    assert torch.equal(gm(x), want)


def test_a_graph_that_was_pickled(device: torch.device, graphs: list[torch.fx.GraphModule]) -> None:
    x = X.to(device)
    want = torch.compile(lambda x: x.cos() + 1, fullgraph=True)(x)
    (node,) = [node for node in graphs[-1].graph.nodes if node.op == "call_module"]
    kernel = pickle.loads(pickle.dumps(graphs[-1].get_submodule(node.target)))
    result = torch.empty_like(x)
    kernel(x, result, *node.args[2:])
    assert torch.equal(result, want)


@pytest.mark.core
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.`:FutureWarning")
def test_ahead_of_time(device: torch.device) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(Y.to(device))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(x) @ self.weight.t()

    x = X.to(device)
    model = Model()
    exported = torch.export.export(model, (x,))
    gm = torch._inductor.aot_compile(exported.module(), (x,), options={"fx_wrapper": True})
    assert isinstance(gm, torch.fx.GraphModule)
    torch.testing.assert_close(gm(x), model(x), atol=1e-3, rtol=1e-4)


def test_an_input_is_freed_after_its_last_use(
    device: torch.device, graphs: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code gets a list of its inputs and empties it."""
    from torch_outboard.compile.fx.wrapper import OutboardFxWrapper

    compiled_graphs: list[Callable[..., Any]] = []
    compile_graph = OutboardFxWrapper.compile_graph

    def record(self: OutboardFxWrapper, gm: torch.fx.GraphModule) -> Callable[..., Any]:
        compiled_graphs.append(compile_graph(self, gm))
        return compiled_graphs[-1]

    monkeypatch.setattr(OutboardFxWrapper, "compile_graph", record)
    torch.compile(lambda x: (x.cos() @ x.t()).exp(), fullgraph=True)(X.to(device))
    arguments = [X.to(device)]
    was_alive = []
    # The operator that runs last, in whose place the graph now calls this.
    argument = weakref.ref(arguments[0])
    kernel = next(node for node in reversed(graphs[-1].graph.nodes) if node.op == "call_module").target
    module = graphs[-1].get_submodule(kernel)
    monkeypatch.setattr(type(module), "forward", lambda self, *_: was_alive.append(argument() is not None))
    compiled_graphs[-1](arguments)
    assert arguments == [] and was_alive == [True, False]
