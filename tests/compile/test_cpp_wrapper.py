# SPDX-License-Identifier: BSD-3-Clause
"""`cpp_wrapper`: a compiled function is C++ that queues kernels and calls operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

from .conftest import Compare

# torch 2.12 warns of it at each product, on the CPU too.
pytestmark = pytest.mark.filterwarnings("ignore:CUTLASS backend is not supported with non-AOT cpp_wrapper")

torch.manual_seed(3)
X = torch.randn(32, 48)
Y = torch.randn(32, 48)


@pytest.fixture(autouse=True)
def _cpp_wrapper() -> Iterator[None]:
    with config.patch(cpp_wrapper=True):
        yield


@pytest.mark.core
def test_values(compare: Compare) -> None:
    """Kernels, operators with tensors, numbers, lists, types and None as arguments, and views as arguments."""

    def function(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> Any:
        products = (F.gelu(x) * y + 1, x @ y.t(), torch.addmm(y, x[:, :32], y, beta=0.5, alpha=2))
        ordered = (x.topk(3)[0], x.sort(1)[1], x.t()[2:40, ::2] @ x[:16], torch.linalg.vector_norm(x @ y.t()))
        images = F.conv2d(x.view(1, 2, 16, 48), y[:8].reshape(4, 2, 4, 12), stride=(2, 1))
        mixed = (s * x, x.view(torch.int32) + 1, x.to("cpu") * 2, (x @ y.t()).view(torch.int32) + 1)
        return products, ordered, images, mixed, torch.histc(x, 5, -2.0, 2.0), torch.unique_consecutive(x.int())

    compare(function, X, Y, torch.tensor(2.5), tolerance=1e-3, dynamic=False)


def test_mutation(compare: Compare) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        y[:, 1:3].mul_(2)
        y.index_put_((i,), x[:3], accumulate=True)
        x.scatter_(0, i[:, None].expand(3, 48), y[:3])
        x.scatter_reduce_(0, i[:, None].expand(3, 48), y[:3], "amax", include_self=False)
        return x.sum()

    compare(function, X, Y, torch.tensor([1, 5, 1]), tolerance=1e-3)


def test_training(compare: Compare) -> None:
    compare(
        lambda x, w, b: F.layer_norm(torch.relu(x @ w + b), (8,)).square(),
        X.clone().requires_grad_(),
        torch.randn(48, 8, requires_grad=True),
        torch.randn(8, requires_grad=True),
        tolerance=1e-3,
    )


@pytest.mark.core
def test_dynamic_shapes(device: torch.device) -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return (F.gelu(x)[:, :n] @ x[:n]).sum(-1) * n + x.shape[0]

    compiled = torch.compile(function, dynamic=True, fullgraph=True)
    for rows, n in ((3, 2), (17, 9), (64, 31), (5, 4)):
        x = torch.randn(rows, rows)
        torch.testing.assert_close(compiled(x.to(device), n).cpu(), function(x, n), atol=1e-3, rtol=1e-4)


def test_sizes_and_branches_that_depend_on_values(device: torch.device) -> None:
    def function(x: torch.Tensor) -> Any:
        return x.nonzero() + 1, torch.cond(x.sum() > 0, lambda x: x.cos() + 1, lambda x: x.sin() - 1, (x,))

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, fullgraph=True)
        for x in (torch.tensor([1.0, 0, 2, 0]), torch.tensor([0.0, -1, 0, 0])):
            torch.testing.assert_close([result.cpu() for result in compiled(x.to(device))], list(function(x)))


@torch.library.custom_op("outboard_cpp_wrapper_test::pair", mutates_args=("y",))
def pair(x: torch.Tensor, y: torch.Tensor, scale: float, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    assert name == 'a "name"'
    y.add_(1)
    return x * scale, x + y


@pair.register_fake
def _(x: torch.Tensor, y: torch.Tensor, scale: float, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def test_an_operator_in_python_and_the_second_device(second_device: torch.device) -> None:
    """Buffers and kernels are on the second device, even if another device is current."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        first, second = pair(x.cos(), y, float("inf"), 'a "name"')
        return torch.cat([first, second]).softmax(-1), torch.rand(3, device=x.device) < 2

    x, y = X.abs().to(second_device), Y.to(second_device)
    results, (code, *_) = run_and_get_code(torch.compile(function, fullgraph=True), x, y)
    assert all(result.device == second_device for result in results)
    torch.testing.assert_close(y.cpu(), Y + 1)
    want = torch.cat([X.abs().cos() * float("inf"), X.abs().cos() + Y + 1]).softmax(-1)
    torch.testing.assert_close(results[0].cpu(), want, equal_nan=True)
    assert results[1].all()
    assert "_kernel().launch({" in code and 'CompiledOperator op("outboard_cpp_wrapper_test::pair", "")' in code


def test_kernels_are_queued(device: torch.device) -> None:
    """In a capture the kernels are steps of the graph: nothing runs before a replay."""
    compiled = torch.compile(lambda x, out: out.copy_(x.cos() * 2), fullgraph=True)
    x, out = torch.zeros(8, device=device), torch.zeros(8, device=device)
    compiled(x, out)
    module = torch.get_device_module(device)
    graph = module.Graph()
    with module.graph(graph):
        compiled(x, out)
    out.zero_()
    x.fill_(torch.pi)
    graph.replay()
    torch.testing.assert_close(out.cpu(), torch.full((8,), -2.0))


@pytest.mark.core
def test_errors_keep_their_types(device: torch.device) -> None:
    compiled = torch.compile(lambda x, n: x.new_ones(n * 2**20).cos(), dynamic=True, fullgraph=True)
    compiled(torch.ones(2, device=device), 2)  # Triton's kernels are measured with such sizes
    with pytest.raises(torch.OutOfMemoryError):
        compiled(torch.ones(2, device=device), 2**20)
