# SPDX-License-Identifier: BSD-3-Clause
"""cat and stack of empty, of many and of differently laid out tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch

import torch_outboard
from torch_outboard.kernels import plan_statistics


def joined(tensors: Sequence[torch.Tensor], dim: int, device: torch.device) -> torch.Tensor:
    """Compare cat with the CPU's: values, strides and the provider that ran it."""
    ours = [tensor.to(device) for tensor in tensors]
    torch_outboard.reset_coverage()
    result = torch.cat(ours, dim)
    assert {row.provider for row in torch_outboard.coverage()} <= {"generated"}, torch_outboard.coverage()
    expected = torch.cat(list(tensors), dim)
    assert torch.equal(result.cpu(), expected) and result.dtype == expected.dtype
    assert result.stride() == expected.stride()
    return result


@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize("shape", [(0,), (0, 7), (3, 0), (0, 2, 3), (2, 3, 0)], ids=str)
def test_empty(count: int, shape: tuple[int, ...], device: torch.device) -> None:
    for dim in range(len(shape)):
        joined([torch.zeros(shape) for _ in range(count)], dim, device)
        filled = [*shape]
        filled[dim] = 2
        joined([torch.ones(filled), *(torch.zeros(shape) for _ in range(count - 1))], dim, device)
        stacked = torch.stack([torch.zeros(shape, device=device)] * count, dim)
        assert stacked.shape == torch.stack([torch.zeros(shape)] * count, dim).shape


def test_an_empty_cache(device: torch.device) -> None:
    x = torch.arange(120).view(2, 3, 4, 5).bfloat16()
    for nothing in (torch.tensor([]), torch.tensor([], dtype=x.dtype)):
        joined([nothing, x], -2, device)
        joined([nothing, x.transpose(1, 2)], -2, device)
        joined([x, nothing, x], 1, device)
        joined([nothing, x.to(memory_format=torch.channels_last)], 1, device)
        joined([nothing, *[x] * 9], 1, device)
        joined([nothing, x.long()], -2, device)
    joined([nothing] * 2, 0, device)


def test_many_along_each_dimension(device: torch.device) -> None:
    x = torch.randn(3, 4, 5)
    for dim in range(3):
        joined([x + number for number in range(20)], dim, device)
    joined([x.transpose(0, 1) + number for number in range(16)], 0, device)
    joined([x.transpose(0, 2) + number for number in range(16)], 2, device)
    joined([x.narrow(1, 0, number % 3 + 1) for number in range(20)], 1, device)
    joined([torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)] * 9, 1, device)
    joined([x, x.double()] * 5, 1, device)


def test_lists_of_all_lengths_share_plans(device: torch.device) -> None:
    x = torch.randn(2, 3)
    for length in (8, 9, 16, 63):
        joined([x] * length, 1, device)
        joined([x, x[:, :2], *[x] * length], 1, device)
    before = plan_statistics()
    for length in itertools.chain(range(64, 80), [300]):
        joined([x] * length, 1, device)
    assert plan_statistics() == before
