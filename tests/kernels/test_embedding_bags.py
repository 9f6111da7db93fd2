# SPDX-License-Identifier: BSD-3-Clause
"""Bags of embeddings by generated kernels: all results, gradients, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_outboard
from torch_outboard.testing.database.calls import poison

MODES = ("sum", "mean", "max")


def bags(has_last: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices, some of them equal, and the offsets of bags, one of them empty."""
    return torch.randint(10, (9,)), torch.tensor([0, 3, 3, 6] + ([9] if has_last else []))


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        pytest.param(mode, dtype, marks=() if (mode == "max") == (dtype == torch.float32) else pytest.mark.long)
        for mode in MODES
        for dtype in (torch.float32, torch.bfloat16)
    ],
    ids=str,
)
def test_bags(mode: str, dtype: torch.dtype, device: torch.device) -> None:
    """Every result of the operators, also those that only gradients read."""
    kind, near = MODES.index(mode), {"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {}
    for has_last, padding, is_scaled in itertools.product((False, True), (-1, 3), (False, True)):
        if is_scaled and mode != "sum":
            continue
        weight, (indices, offsets) = torch.randn(10, 4, dtype=dtype), bags(has_last)
        scale = torch.randn(9, dtype=dtype) if is_scaled else None
        results: list[list[Any]] = []
        poison(device)
        torch_outboard.reset_coverage()
        for place in ("cpu", device):
            leaves = [leaf.detach().clone().to(place).requires_grad_() for leaf in (weight, scale) if leaf is not None]
            more = (False, kind, False, leaves[1] if is_scaled else None, has_last, padding)
            index = (indices.to(place), offsets.to(place))
            bagged = torch.ops.aten._embedding_bag(leaves[0], *index, *more)
            gradients = torch.autograd.grad((bagged[0] * bagged[0]).sum(), leaves)
            with torch.no_grad():
                forward = torch.ops.aten._embedding_bag_forward_only(leaves[0], *index, *more)
            results.append([*bagged, *gradients, *forward])
        assert {row.provider for row in torch_outboard.coverage()} <= {"generated", "native"}, torch_outboard.coverage()
        for expected, result in zip(*results, strict=True):
            torch.testing.assert_close(result.cpu(), expected, **near)


def test_bags_without_indices(device: torch.device) -> None:
    weight, none = torch.randn(10, 4, device=device), torch.empty(0, dtype=torch.int64, device=device)
    for mode in MODES:
        assert torch.equal(F.embedding_bag(none, weight, none.new_zeros(2), mode=mode).cpu(), torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("indices", "offsets", "message"),
    [
        ([1, 10], [0], "out of bounds|valid range"),
        ([-1, 1], [0], "out of bounds|valid range"),
        ([1, 2], [1], "offsets"),
        ([1, 2], [0, 3], "offsets"),
    ],
    ids=["index", "negative", "begin", "end"],
)
def test_bags_that_the_cpu_refuses(indices: list[int], offsets: list[int], message: str, device: torch.device) -> None:
    for place in ("cpu", device):
        weight = torch.randn(10, 4, device=place)
        with pytest.raises((RuntimeError, IndexError), match=message):
            F.embedding_bag(torch.tensor(indices, device=place), weight, torch.tensor(offsets, device=place)).cpu()


@pytest.mark.parametrize("offsets", [[1, 2], [0, 3], [0, 2, 1]], ids=["begin", "end", "order"])
def test_gradients_of_bags_that_no_offsets_make(offsets: list[int], device: torch.device) -> None:
    grad, weight = torch.randn(3, 4, device=device), torch.randn(10, 4, device=device)
    indices, begins = torch.tensor([1, 2], device=device), torch.tensor(offsets, device=device)
    with pytest.raises(RuntimeError, match="offsets"):
        torch.ops.aten._embedding_bag_per_sample_weights_backward(
            grad, weight, indices, begins, indices.new_empty(0), 0
        ).cpu()


def test_a_last_offset_that_is_not_the_end(device: torch.device) -> None:
    """The CPU's kernels take what is left into the last bag, or leave it out, by the mode."""
    weight, (indices, offsets) = torch.randn(10, 4, device=device), bags(True)
    offsets[-1] = 8
    with pytest.raises(RuntimeError, match="the last of them the number of indices"):
        F.embedding_bag(indices.to(device), weight, offsets.to(device), include_last_offset=True).cpu()


def test_gradients_by_frequency_are_the_cpus(device: torch.device) -> None:
    weight, (indices, offsets) = torch.randn(10, 4), bags(False)
    gradients = []
    for place in ("cpu", device):
        leaf = weight.detach().clone().to(place).requires_grad_()
        F.embedding_bag(indices.to(place), leaf, offsets.to(place), scale_grad_by_freq=True).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[1].cpu(), gradients[0])  # type: ignore[union-attr]
