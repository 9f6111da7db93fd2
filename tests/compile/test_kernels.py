# SPDX-License-Identifier: BSD-3-Clause
"""Compiled functions return the results of eager functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .conftest import Compare

# Operators, types and layouts, each compiled: generated kernels.
pytestmark = pytest.mark.database

torch.manual_seed(3)
X = torch.randn(32, 48)
Y = torch.randn(32, 48)


@pytest.mark.core
def test_elementwise(compare: Compare) -> None:
    compare(lambda x, y: (F.gelu(x) * y + 1, torch.where(x > y, x, y).sigmoid()), X, Y)


@pytest.mark.core
def test_reductions(compare: Compare) -> None:
    compare(lambda x: (x.sum(), x.softmax(-1), x.var(0), x.max(1), x.amin(0), x.any(1)), X)


@pytest.mark.core
def test_the_number_of_the_greatest_element_of_a_transposed_tensor(compare: Compare) -> None:
    """The order is by rows of the indexed tensor, not by its place in memory."""
    compare(lambda x: (x.argmax(), x.t().argmax(), x.t().argmin(), x.argmax(1), x.argmax(0, keepdim=True)), X)


def test_layer_norm(compare: Compare) -> None:
    compare(lambda x, w, b: F.layer_norm(x, (48,), w, b), X, torch.randn(48), torch.randn(48))


def test_integers(compare: Compare) -> None:
    compare(lambda i: (i // 3, i % 5, i << 1, i.sum(), i.to(torch.float32).mean()), torch.randint(1, 99, (50,)))


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_dtypes(compare: Compare, dtype: torch.dtype) -> None:
    compare(lambda x: (x * 2, x + x), X.to(dtype), tolerance=1e-2 if dtype.itemsize == 2 else 1e-5)


@pytest.mark.core
def test_indexing(compare: Compare) -> None:
    index = torch.tensor([1, 3, 5, 3, 1])

    def function(x: torch.Tensor, i: torch.Tensor) -> Any:
        wide = i[:, None].expand(5, 48)
        return x[i], x.index_add(0, i, x[:5]), torch.scatter_add(x, 0, wide, x[:5]), F.embedding(i, x)

    compare(function, X, index)


def test_scans_and_sorts(compare: Compare) -> None:
    compare(lambda x: (x.cumsum(0), x.sort(1)[0], x.topk(3)[0]), X)


@pytest.mark.core
def test_operators_without_a_kernel_of_inductors(compare: Compare) -> None:
    compare(lambda x: (x @ x.t() + 1, torch.linalg.vector_norm(x @ x.t())), X, tolerance=1e-3)


def test_factories(compare: Compare) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        where = x.device
        return x + torch.arange(48, device=where) + torch.ones(48, device=where) + torch.full((), 2.0, device=where)

    compare(function, X)


@pytest.mark.parametrize("function", [lambda s, x: s * x + 1, lambda s, x: x * s, lambda s, x: (s - x) @ x.t()])
def test_a_number_on_the_cpu(compare: Compare, function: Any) -> None:
    """The number is read at the call, also as the first operand, whose device Inductor takes for the result's."""
    compare(function, torch.tensor(2.5), X, tolerance=1e-4)


@pytest.mark.core
def test_a_number_on_the_cpu_may_change_after_the_call(device: torch.device) -> None:
    number = torch.tensor(2.0)
    result = torch.compile(lambda x, s: x * s, fullgraph=True)(torch.ones(4, device=device), number)
    number.fill_(7)
    assert result.tolist() == [2, 2, 2, 2]


def test_what_the_cpu_computes_within_a_graph(compare: Compare) -> None:
    compare(lambda x, s: x * (s * 2 + 1).cos(), X, torch.tensor(0.5))


def test_views(compare: Compare) -> None:
    compare(lambda x: (x.t().contiguous() + 1, x[1:, ::2] * 2, x.reshape(-1)[3:].cos(), x.t()[2:5]), X)


@pytest.mark.parametrize("view", [X[:, 1:], X.t(), X[::2, ::3], X.view(-1)[1:], X[:1].expand(4, 48)])
def test_inputs_that_are_views(compare: Compare, view: torch.Tensor) -> None:
    """Inputs with other strides, and with an address that is not a multiple of 16."""
    compare(lambda x: (x.exp() + 1, x.sum(-1)), view)


@pytest.mark.core
def test_inputs_that_share_memory(device: torch.device) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    base = torch.arange(8.0, device=device)
    compiled = torch.compile(function, fullgraph=True)
    assert compiled(base[:6], base[2:]).tolist() == [6, 8, 10, 12, 12, 14]
    assert base.tolist() == [1, 2, 3, 4, 5, 6, 6, 7]


@pytest.mark.core
def test_mutation(compare: Compare) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        y[:, 1:3].mul_(2)
        return x.sum()

    compare(function, X, Y, tolerance=1e-3)


def test_no_elements(compare: Compare) -> None:
    compare(lambda x: (x * 2, x.sum(), torch.cat([x, x])), torch.empty(0, 4))


@pytest.mark.core
@pytest.mark.parametrize("size", [1, 2])
def test_dynamic_shapes(device: torch.device, size: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x).sum(-1) + x.shape[0]

    compiled = torch.compile(function, dynamic=True, fullgraph=True)
    torch._dynamo.utils.counters.clear()
    for rows in (3, 17, 64, 5):
        x = torch.randn(rows, rows * size + 3)
        torch.testing.assert_close(compiled(x.to(device)).cpu(), function(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_size_as_an_argument_of_a_kernel(device: torch.device) -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return x[:n] * n

    compiled = torch.compile(function, dynamic=True, fullgraph=True)
    x = torch.arange(10.0)
    for n in (3, 7, 5):
        torch.testing.assert_close(compiled(x.to(device), n).cpu(), function(x, n))


@pytest.mark.core
def test_the_second_device(second_device: torch.device, device: torch.device) -> None:
    """Buffers and kernels are on the second device, even if another device is current."""
    function = torch.compile(lambda x: (x * 2).softmax(-1) @ x.t(), fullgraph=True)
    for where in (second_device, device):
        result = function(X.to(where))
        assert result.device == where
        torch.testing.assert_close(result.cpu(), (X * 2).softmax(-1) @ X.t(), atol=1e-4, rtol=1e-4)
    assert torch.accelerator.current_device_index() == device.index


def test_a_copy_between_devices(second_device: torch.device, device: torch.device) -> None:
    function = torch.compile(lambda x: ((x + 1).to(second_device) * 2).cpu() + 1, fullgraph=True)
    torch.testing.assert_close(function(X.to(device)), (X + 1) * 2 + 1)


def _convolutions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.conv2d(x, w, padding=1).relu()
    return torch.nn.functional.conv2d(y, w[:, :1].expand(-1, w.shape[0], -1, -1), padding=1)


@pytest.mark.core
@pytest.mark.parametrize("formats", [(torch.channels_last, torch.contiguous_format), (torch.channels_last,) * 2])
def test_convolutions_in_the_format_of_their_inputs(compare: Compare, formats: tuple[torch.memory_format, ...]) -> None:
    torch.manual_seed(0)
    x, w = (
        torch.randn(*size).to(memory_format=form).requires_grad_()
        for size, form in zip(((2, 8, 10, 10), (8, 8, 3, 3)), formats, strict=True)
    )
    compare(_convolutions, x, w, tolerance=1e-3)


@pytest.mark.core
def test_convolutions_run_in_channels_last_where_the_cpus_do(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.graph import GraphLowering

    chosen = {}
    decide = GraphLowering.decide_layout_opt

    def noted(gm: torch.fx.GraphModule, *, is_inference: bool) -> bool:
        places = {node.meta["val"].device.type for node in gm.graph.find_nodes(op="placeholder")}
        is_chosen = decide(gm, is_inference=is_inference)
        chosen.update(dict.fromkeys(places, is_chosen))
        return is_chosen

    monkeypatch.setattr(GraphLowering, "decide_layout_opt", staticmethod(noted))
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 10, 10), torch.randn(4, 3, 3, 3)
    with torch.no_grad():
        for place in ("cpu", device):
            function = torch.compile(lambda x, w: F.conv2d(x, w).relu(), fullgraph=True)
            torch.testing.assert_close(function(x.to(place), w.to(place)).cpu(), F.conv2d(x, w).relu())
    assert chosen[device.type] == chosen["cpu"]


@pytest.mark.core
def test_the_patches_of_convolutions_are_needed() -> None:
    from torch_outboard._compat.inductor import needs_convolve_as_on_cpu, needs_lay_out_as_on_cpu

    assert needs_lay_out_as_on_cpu(), "torch lays convolutions out by what runs: remove lay_out_as_on_cpu"
    assert needs_convolve_as_on_cpu(), "torch asks what runs convolutions: remove convolve_as_on_cpu"


@pytest.mark.core
def test_pools_at_random_places(compare: Compare) -> None:
    x, samples = torch.randn(2, 3, 9, 10, 11), torch.rand(2, 3, 3)
    compare(lambda x, at: F.fractional_max_pool3d(x, (2, 3, 2), (4, 3, 5), None, True, _random_samples=at), x, samples)
    compare(lambda x, at: F.fractional_max_pool2d(x, 2, (4, 5), _random_samples=at), x[:, 0], torch.rand(2, 9, 2))


@pytest.mark.core
def test_the_patch_of_pools_is_needed() -> None:
    from torch_outboard._compat.pools import needs_fix_avg_pool_gradients, needs_fix_fractional_max_pool

    assert needs_fix_fractional_max_pool(), "torch reads the samples in order: remove fix_fractional_max_pool"
    assert needs_fix_avg_pool_gradients(), (
        "torch divides by what windows have of the image: remove fix_avg_pool_gradients"
    )


def test_combined_kernels_are_left_to_triton(device: torch.device) -> None:
    """The setting combines the kernels of every device but those that torch names, which Triton alone can write."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sin(), x.t().cos() + 1, (x + 1).sum(0)

    x = torch.randn(33, 65)
    with torch._inductor.config.patch(combo_kernels=True, benchmark_combo_kernel=True):
        results = torch.compile(function)(x.to(device))
    for got, want in zip(results, function(x), strict=True):
        torch.testing.assert_close(got.cpu(), want, atol=1e-4, rtol=1e-4)
