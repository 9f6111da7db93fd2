# SPDX-License-Identifier: BSD-3-Clause
"""Sorting, and operators composed of it, by kernels of the device: the results are the CPU's."""

from __future__ import annotations

import pytest
import torch

import torch_outboard
from torch_outboard import _C
from torch_outboard.testing.database.calls import poison

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return numbers with many equal ones and all special values."""
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        numbers = torch.randint(max(-20, limits.min), 20, shape).to(dtype)
        numbers.view(-1)[:2] = torch.tensor([limits.min, limits.max], dtype=dtype)
        return numbers
    numbers = torch.randint(-20, 20, shape).to(dtype) / 4
    special = torch.tensor([float("nan"), -0.0, 0.0, float("inf"), -float("inf"), torch.finfo(dtype).tiny], dtype=dtype)
    special = torch.cat([special, -special[:1], special])
    numbers.view(-1)[: len(special)] = special[: numbers.numel()]
    return numbers.view(-1)[torch.randperm(numbers.numel())].view(shape)


def assert_same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape and (got.stride() == want.stride() or got.numel() <= 1)
    got = got.cpu()
    if got.is_floating_point():
        assert torch.equal(got.isnan(), want.isnan())
        got, want = got.nan_to_num(0, 9, -9), want.nan_to_num(0, 9, -9)
        assert torch.equal(got.signbit(), want.signbit())  # of zeros too
    assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_stable_sorts(device, dtype):
    torch_outboard.reset_coverage()
    for length in (1, 2, 15, 16, 17, 33, 64, 100, 1000, 5000):
        rows = values(dtype, 3, length) if length * 3 > 13 else values(dtype, 3, 8)[:, :length].contiguous()
        ours = rows.to(device)
        poison(device)
        for descending in (False, True):
            got = ours.sort(dim=1, descending=descending, stable=True)
            want = rows.sort(dim=1, descending=descending, stable=True)
            assert_same(got.values, want.values)
            assert torch.equal(got.indices.cpu(), want.indices)
    assert {row.provider for row in torch_outboard.coverage() if "sort" in row.op} == {"generated"}


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(
    "view",
    [lambda x: x, lambda x: x.transpose(0, 2), lambda x: x[::2, 1:], lambda x: x.permute(1, 2, 0)],
    ids=["contiguous", "transposed", "strided", "permuted"],
)
def test_other_dimensions_and_strides(device, dim, view):
    x = torch.randint(-9, 9, (8, 9, 11)).float()
    ours = view(x.to(device))
    torch_outboard.reset_coverage()
    got, want = ours.sort(dim=dim, stable=True), view(x).sort(dim=dim, stable=True)
    assert_same(got.values, want.values)
    assert_same(got.indices, want.indices)
    assert torch_outboard.coverage().calls("aten::sort.stable", "generated") == 1, torch_outboard.coverage()


def test_many_elements_in_one_row(device):
    x = torch.randn(200_000)
    got = x.to(device).sort(descending=True)
    want = x.sort(descending=True)
    assert torch.equal(got.values.cpu(), want.values)
    assert torch.equal(x[got.indices.cpu()], want.values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("largest", [False, True])
def test_topk(device, dtype, largest):
    x = values(dtype, 5, 77)
    torch_outboard.reset_coverage()
    for k, dim in ((1, 1), (7, 1), (77, 1), (0, 1), (3, 0)):
        got, want = x.to(device).topk(k, dim, largest), x.topk(k, dim, largest)
        assert_same(got.values.abs(), want.values.abs())
        assert_same(x.gather(dim, got.indices.cpu()).abs(), want.values.abs())
    assert torch_outboard.coverage().calls("aten::topk", "generated") == 5


def test_medians(device):
    torch_outboard.reset_coverage()
    for x in (torch.randn(5, 8), torch.randn(4, 7), values(torch.float32, 6, 9), torch.randint(9, (5, 6))):
        ours = x.to(device)
        for name in ("median", "nanmedian"):
            function = getattr(torch, name)
            # Which of two zeros it is, none promises.
            assert_same(function(ours).abs(), function(x).abs())
        for name, *arguments in (("median",), ("nanmedian",), ("kthvalue", 3)):
            for dim, keepdim in ((0, False), (1, True)):
                got, want = (getattr(tensor, name)(*arguments, dim, keepdim) for tensor in (ours, x))
                assert_same(got.values.abs(), want.values.abs())
                place = got.indices.cpu() if keepdim else got.indices.cpu().unsqueeze(dim)
                assert_same(x.gather(dim, place).view_as(want.values).abs(), want.values.abs())
    assert torch_outboard.coverage().calls() == torch_outboard.coverage().calls(provider="generated")


def test_modes(device):
    torch_outboard.reset_coverage()
    for x in (torch.randint(4, (5, 40)), torch.randint(3, (6, 7)).float(), torch.zeros(3, 2), torch.tensor(4)):
        for dim, keepdim in ((0, False), (-1, True)):
            got, want = x.to(device).mode(dim, keepdim), x.mode(dim, keepdim)
            assert_same(got.values, want.values)
            place = got.indices.cpu() if keepdim or x.dim() == 0 else got.indices.cpu().unsqueeze(dim)
            assert_same(x.gather(dim, place).view_as(want.values), want.values)
    assert torch_outboard.coverage().calls() == torch_outboard.coverage().calls(provider="generated")


def test_other_lengths_need_no_other_plan(device):
    for length in (40, 50):
        torch.randn(3, length, device=device).sort(dim=1)
    built = _C.built_plans()
    for length in (2, 60, 999):
        x = torch.randn(3, length)
        assert torch.equal(x.to(device).sort(dim=1).values.cpu(), x.sort(dim=1).values)
    assert _C.built_plans() == built
