# SPDX-License-Identifier: BSD-3-Clause
"""Scatters that sort values by their target: in deterministic mode, and always for products, means and extremes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_outboard import coverage, reset_coverage
from torch_outboard.testing.database.calls import poison

TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.int8]


@pytest.fixture
def _is_deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def run(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, device: torch.device) -> None:
    """Compare with the CPU, in memory that held other values, and with itself."""
    results = []
    for _ in range(2):
        ours = [tensor.detach().to(device).requires_grad_(tensor.requires_grad) for tensor in inputs]
        poison(device)
        reset_coverage()
        results.append(function(*ours).cpu())
        assert {row.provider for row in coverage()} <= {"generated"}, coverage()
    torch.testing.assert_close(*results, atol=0, rtol=0, equal_nan=True)
    theirs = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
    torch.testing.assert_close(results[0], function(*theirs), equal_nan=True)


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (
        torch.randint(-3, 4, shape).to(dtype) / 2 if dtype.is_floating_point else torch.randint(-3, 4, shape).to(dtype)
    )


def places(size: int, *shape: int) -> torch.Tensor:
    return torch.randint(size, shape)


def gradient(function: Callable[..., torch.Tensor], x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    function(x, *arguments).pow(2).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.usefixtures("_is_deterministic")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_and_writes(dtype: torch.dtype, device: torch.device) -> None:
    x, y, i = values(5, 9, dtype=dtype), values(40, 9, dtype=dtype), places(5, 40)
    run(lambda x, i, y: x.index_put_((i,), y, accumulate=True), x, i, y, device=device)
    run(lambda x, i, y: x.index_put((i - 5,), y), x, i, y, device=device)
    run(lambda x, i, y: x.index_add_(0, i, y, alpha=2), x, i, y, device=device)
    run(lambda x, i, y: x.scatter_add(1, i.view(5, 8), y.view(5, 72)), x, i, y, device=device)
    run(lambda x, i, y: x.t().scatter_(0, i.view(8, 5), y.view(8, 45)), x, i, y, device=device)
    run(lambda x, i, y: x.t().index_add(0, i, y[:, :5]), values(5, 7, dtype=dtype), i, y, device=device)
    run(lambda x, i: x.scatter_(1, i.view(5, 8), 7), x, i, device=device)


@pytest.mark.usefixtures("_is_deterministic")
def test_indices_of_several_dimensions(device: torch.device) -> None:
    x, i, j = torch.randn(4, 5, 6, 3), places(4, 7, 1), places(3, 8)

    def put(x: torch.Tensor, index: Any, y: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.index_put(x, index, y, accumulate=True)

    run(lambda x, i, j, y: put(x, (i, None, None, j), y), x, i, j, torch.randn(7, 8, 5, 6), device=device)
    run(lambda x, i, j, y: put(x, (None, i, j), y), x, i, j, torch.randn(4, 7, 8, 3), device=device)
    run(lambda x, i, y: put(x, (None, None, i), y), x, i, torch.randn(3), device=device)
    run(lambda x, i, j, y: put(x.permute(3, 1, 0, 2), (j, i), y), x, i, j, torch.randn(1, 8, 1, 6), device=device)
    run(lambda x, i: put(x, (i[:0, 0],), x[:0]), x, i, device=device)


@pytest.mark.usefixtures("_is_deterministic")
def test_gradients(device: torch.device) -> None:
    table, i = torch.randn(9, 12, requires_grad=True), places(9, 6, 50)
    run(lambda t, i: gradient(lambda t: F.embedding(i, t), t), table, i, device=device)
    run(lambda t, i: gradient(lambda t: F.embedding(i, t, padding_idx=3), t), table, i, device=device)
    run(lambda t, i: gradient(lambda t: t.index_select(0, i.flatten()), t), table, i, device=device)
    run(lambda t, i: gradient(lambda t: t[:, i], t), table, i, device=device)
    run(lambda t, i: gradient(lambda t: t.gather(1, i), t), table, i, device=device)
    image = torch.randn(2, 3, 8, 8, requires_grad=True)
    run(lambda x: gradient(lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), x), image, device=device)
    run(lambda x: gradient(lambda x: F.max_pool2d(x, 3, 2), x), image, device=device)


@pytest.mark.usefixtures("_is_deterministic")
def test_compiled_in_deterministic_mode(device: torch.device) -> None:
    @torch.compile
    def step(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * 2).index_add(0, i, y.sin()) + 1

    x, y, i = torch.randn(5, 9), torch.randn(400, 9), places(5, 400)
    ours = [step(x.to(device), i.to(device), y.to(device)).cpu() for _ in range(2)]
    assert torch.equal(*ours)
    torch.testing.assert_close(ours[0], (x * 2).index_add(0, i, y.sin()) + 1)


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning")
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        *((torch.float32, kind) for kind in ("sum", "mean", "prod", "amax", "amin")),
        *((dtype, kind) for dtype in (torch.bfloat16, torch.int64, torch.int8) for kind in ("mean", "amax")),
    ],
    ids=str,
)
def test_reductions(dtype: torch.dtype, kind: str, device: torch.device) -> None:
    x, y, i = values(5, 9, dtype=dtype), values(5, 40, dtype=dtype), places(9, 5, 40)
    for includes in (True, False):

        def reduce(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor, includes: bool = includes) -> torch.Tensor:
            return x.scatter_reduce(1, i, y, kind, include_self=includes)

        run(reduce, x, i[:, :30], y, device=device)
        run(lambda x, i, y: reduce(x.t(), i, y.t()), values(3, 5, dtype=dtype), i % 3, y.t(), device=device)
    if kind != "sum":
        run(lambda x, i, y: x.index_reduce_(1, i[0], y, kind), x, i, values(5, 40, dtype=dtype), device=device)


def test_what_is_no_number(device: torch.device) -> None:
    x, i = torch.tensor([1.0, float("nan"), 3, 4]), torch.tensor([0, 0, 1, 3, 3])
    y = torch.tensor([float("nan"), 5, 9, float("inf"), -float("inf")])
    for kind in ("amax", "amin", "prod", "mean"):
        run(lambda x, i, y, kind=kind: x.scatter_reduce_(0, i, y, kind), x, i, y, device=device)
    run(lambda x, i, y: x.scatter_reduce_(0, i, y, "amax"), x > 2, i, y > 5, device=device)
    run(lambda x, i, y: x.scatter_reduce_(0, i, y, "amin"), torch.tensor(2.0), i[:1], y[1:2], device=device)


def test_indices_beyond_the_tensor(device: torch.device) -> None:
    x, y = torch.zeros(4, device=device), torch.ones(2, device=device)
    for index in (4, -1):
        with pytest.raises(RuntimeError, match=f"aten::scatter_reduce: index {index} is out of bounds"):
            x.scatter_reduce(0, torch.tensor([0, index], device=device), y, "prod")
            torch.accelerator.synchronize(device)
        with pytest.raises(RuntimeError, match=f"aten::gather: index {index} is out of bounds"):
            x.gather(0, torch.tensor([0, index], device=device))
            torch.accelerator.synchronize(device)
    torch.accelerator.synchronize(device)


@pytest.mark.parametrize("size", [0, 3, 50])
def test_places_of_nonzero_elements_up_to_a_size(size: int, device: torch.device) -> None:
    for tensor in (values(4, 5), values(4, 5).t(), values(7), values(2, 0), torch.tensor(3.0)):
        run(lambda x: torch.nonzero_static(x, size=size, fill_value=-7), tensor, device=device)
