# SPDX-License-Identifier: BSD-3-Clause
"""Reductions in all ways in which items share rows: short and long, along memory and across, few and many.

If the items of a group reduce together (`codegen/mapping/group.py`), with these sizes some items have no row, or fewer
elements than others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from torch_outboard import _C, coverage, reset_coverage
from torch_outboard.codegen.mapping.machine import groups_share_work
from torch_outboard.compile.generators import generators

SHAPES = [(9, 300), (33, 5000), (300, 40)]
# Of other ways in which rows are shared: one function of each kind.
OTHER_SHAPES = [(7, 33), (20011,)]
OF_EACH_KIND = ("sum", "argmin", "var", "softmax")
FUNCTIONS: dict[str, Callable[[torch.Tensor, int], object]] = {
    "sum": lambda x, dim: x.sum(dim),
    "prod": lambda x, dim: (1 + x / 1000).prod(dim),
    "max": lambda x, dim: x.max(dim),
    "argmin": lambda x, dim: x.argmin(dim),
    "any": lambda x, dim: (x > 3).any(dim),
    "count": lambda x, dim: (x > 0).sum(dim),
    "var": lambda x, dim: x.var(dim),
    "norm": lambda x, dim: x.norm(dim=dim),
    "softmax": lambda x, dim: x.softmax(dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
    "softmax of halves": lambda x, dim: x.half().softmax(dim),
    "sum of integers": lambda x, dim: (x * 1000).long().sum(dim),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [*itertools.product(FUNCTIONS, SHAPES), *itertools.product(OF_EACH_KIND, OTHER_SHAPES)],
    ids=str,
)
def test_values(name: str, shape: tuple[int, ...], device: torch.device) -> None:
    x = torch.randn(shape)
    reset_coverage()
    for dim in range(len(shape)):
        compare(FUNCTIONS[name](x.to(device), dim), FUNCTIONS[name](x, dim))
    assert coverage().calls(provider="host") + coverage().calls(provider="fallback") == 0


def compare(ours: object, theirs: object) -> None:
    for result, wanted in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        tolerance = 2e-3 if wanted.dtype == torch.half else 1e-4
        torch.testing.assert_close(result.cpu(), wanted, atol=tolerance, rtol=1e-4, equal_nan=True)


def test_ties_and_nans_are_the_cpus(device: torch.device) -> None:
    x = torch.randint(3, (70, 3000)).float()
    x[::7, 17] = float("nan")
    for dim in (0, 1):
        compare(x.to(device).max(dim), x.max(dim))
        compare(x.to(device).argmin(dim), x.argmin(dim))


def test_a_tensor_without_dimensions_is_reduced(device: torch.device) -> None:
    x = torch.tensor(3.0, device=device)
    reset_coverage()
    assert [x.sum(0).item(), x.sum(-1, keepdim=True).item(), x.var(0, correction=0).item()] == [3, 3, 0]
    assert x.logsumexp(0).item() == pytest.approx(3)
    assert {row.provider for row in coverage()} <= {"generated"}, coverage()


def test_norms_of_rows(device: torch.device) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, w = torch.randn(37, 700, dtype=dtype), torch.randn(700, dtype=dtype)
        tolerance = 1e-4 if dtype == torch.float32 else 3e-2
        ours = torch.ops.aten.native_layer_norm(x.to(device), [700], w.to(device), w.to(device), 1e-5)
        for result, wanted in zip(ours, torch.ops.aten.native_layer_norm(x, [700], w, w, 1e-5), strict=True):
            torch.testing.assert_close(result.cpu(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("has_running", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_statistics_of_batches_have_the_cpus_type(dtype: torch.dtype, has_running: bool, device: torch.device) -> None:
    x = torch.randn(4, 5, 60, dtype=dtype)
    for kind in (dtype, torch.float32, None):
        statistics = [None if kind is None else torch.rand(5, dtype=kind) for _ in range(2)]
        statistics += [torch.rand(5, dtype=kind or dtype) if has_running else None for _ in range(2)]
        results = []
        for where in (device, torch.device("cpu")):
            here = [tensor if tensor is None else tensor.clone().to(where) for tensor in statistics]
            results.append([*torch.ops.aten.native_batch_norm(x.to(where), *here, True, 0.1, 1e-5), *here[2:]])
        for ours, theirs in zip(*results, strict=True):
            if theirs is not None:
                torch.testing.assert_close(ours.cpu(), theirs, atol=3e-2 if dtype != torch.float32 else 1e-5, rtol=1e-2)


def test_a_plan_serves_sizes_of_one_order(device: torch.device) -> None:
    """A plan fixes the parts by the rows' size on a CPU, and also by their number if groups share rows."""
    shapes = [(50, 600), (70, 900), (40, 40_000), (20_000, 30)]
    built = []
    for shape in shapes:
        x = torch.randn(shape)
        before = _C.built_plans()
        compare(x.to(device).logsumexp(1), x.logsumexp(1))
        built.append(_C.built_plans() - before)
    are_shared = groups_share_work(generators().eager().dialect, device)
    assert built[1] == 0 and (built[2] > 0, built[3] > 0) == (True, are_shared), built


def test_an_index_that_is_wrong_is_said_once_and_none_by_items_without_a_row(device: torch.device) -> None:
    logits, wanted = torch.randn(37, 70), torch.arange(37) % 70
    compare(F.cross_entropy(logits.to(device), wanted.to(device)), F.cross_entropy(logits, wanted))
    pooled = F.max_pool3d(torch.randn(1, 2, 7, 7, 7).to(device), 3)
    torch.accelerator.synchronize(device)
    assert pooled.shape == (1, 2, 2, 2, 2)
    with pytest.raises(IndexError, match="nll_loss"):
        F.cross_entropy(logits.to(device), (wanted + 60).to(device)).item()


def test_a_sum_in_place_of_what_it_reads(device: torch.device) -> None:
    x = torch.randn(50, 600)
    ours = x.to(device)
    ours.sub_(ours.logsumexp(1, keepdim=True))
    compare(ours, x - x.logsumexp(1, keepdim=True))


@pytest.mark.usefixtures("nothing_on_the_cpu")
@pytest.mark.parametrize("shape", [(7, 2900), (2900, 7), (5, 70)])
def test_a_row_that_its_softmax_overwrites_in_place(shape: tuple[int, int], device: torch.device) -> None:
    x = torch.randn(shape)
    for dim in (0, 1):
        ours, rows = x.to(device), x.to(device)
        compare(torch.softmax(ours, dim, out=ours), x.softmax(dim))
        compare(rows.copy_(torch.log_softmax(rows, dim)), x.log_softmax(dim))


@pytest.mark.usefixtures("nothing_on_the_cpu")
@pytest.mark.parametrize("reduction", [torch.sum, torch.prod, torch.cumsum, torch.cumprod])
def test_elements_are_converted_to_the_type_of_out_before_they_are_reduced(
    reduction: Callable[..., torch.Tensor], device: torch.device
) -> None:
    x = torch.tensor([1.7, 2.7, 3.9, 1.6])
    is_running = reduction in (torch.cumsum, torch.cumprod)
    want, out = (torch.zeros([4] if is_running else [], dtype=torch.int32, device=place) for place in ("cpu", device))
    reduction(x, 0, out=want)
    reduction(x.to(device), 0, out=out)
    assert torch.equal(out.cpu(), want)
