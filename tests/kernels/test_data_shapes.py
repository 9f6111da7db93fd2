# SPDX-License-Identifier: BSD-3-Clause
"""Results whose sizes depend on values, on a device whose memory the host cannot reach: nothing runs on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import torch_outboard
from torch_outboard.testing.database.calls import poison


def run(function: Any, *arguments: Any, device: torch.device) -> None:
    """Compare a function with the CPU's, including strides."""
    ours = tree_map(lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, arguments)
    poison(device)
    torch_outboard.reset_coverage()
    got = function(*ours)
    assert {row.provider for row in torch_outboard.coverage()} <= {"generated"}, torch_outboard.coverage()
    theirs = tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, arguments)
    want = function(*theirs)
    for left, right in zip(tree_leaves((got, ours)), tree_leaves((want, theirs)), strict=True):
        if not isinstance(right, torch.Tensor):
            assert left == right
            continue
        assert left.dtype == right.dtype and torch.equal(left.cpu(), right), (left, right)
        assert left.stride() == right.stride() or right.numel() == 0, (left.stride(), right.stride())


def some(*shape: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (300,), (4, 5), (3, 1, 6), (2, 0, 3)])
def test_nonzero(device, dtype, shape):
    x = some(*shape).to(dtype)
    run(torch.nonzero, x, device=device)
    run(torch.argwhere, x, device=device)
    run(lambda x: torch.nonzero(x, as_tuple=True), x, device=device)
    run(torch.nonzero, torch.zeros(shape, dtype=dtype), device=device)
    if len(shape) > 1:
        run(lambda x: x.transpose(0, 1).nonzero(), x, device=device)


def test_masked_select(device):
    x = torch.randn(5, 6)
    run(torch.masked_select, x, x > 0, device=device)
    run(torch.masked_select, x, torch.tensor([True, False, True, True, False, True]), device=device)
    run(torch.masked_select, torch.randn(6), x > 0, device=device)
    run(torch.masked_select, x, torch.tensor(False), device=device)
    run(lambda x: x.t().masked_select(x.t() < 0.5), x, device=device)


def test_reading_by_masks(device):
    x = torch.randn(4, 5, 6)
    run(lambda x: (x[x > 0], x[x > 9]), x, device=device)
    run(lambda x, m: (x[m], x[:, :5][m]), x, some(4, 5) > 0, device=device)
    run(lambda x, m: x[:, m], x, some(5) > 0, device=device)
    run(lambda x, m, i: x[i, m], x, torch.tensor([True, False, True, False, True]), torch.tensor(1), device=device)
    run(lambda x, m: x[m], torch.randn(()), torch.tensor(True), device=device)
    with pytest.raises(IndexError, match="shape of the mask"):
        x.to(device)[torch.ones(3, dtype=torch.bool, device=device)]


def test_writing_by_masks_and_numbers(device):
    x = torch.randn(4, 5, 6)

    def put(x, index, value):
        x[index] = value
        return x

    run(lambda x: put(x, x > 0, 7.0), x.clone(), device=device)
    run(lambda x, m, v: put(x, m, v), x.clone(), some(4, 5) > 0, torch.randn(6), device=device)
    run(lambda x, i, v: put(x, i, v), x.clone(), torch.tensor([2, 0]), torch.randn(2, 5, 6), device=device)
    run(
        lambda x, i, v: put(x, (slice(None), i), v),
        x.clone(),
        torch.tensor([4, 1]),
        torch.randn(4, 2, 6),
        device=device,
    )
    mask = torch.tensor([True, False, True, True])
    run(lambda x, v: put(x, mask.to(x.device), v), x.clone(), torch.randn(3, 5, 6), device=device)
    rows = torch.tensor([1, 1, 3, 1])
    run(lambda x, i: x.index_put_((i,), x.new_ones(4, 3), accumulate=True), some(5, 3).float(), rows, device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.float16])
def test_unique(device, dtype):
    x = some(6, 7).to(dtype)
    run(torch.unique, x, device=device)
    run(lambda x: torch.unique(x, return_inverse=True, return_counts=True), x, device=device)
    run(lambda x: torch.unique(x, return_counts=True), torch.ones(1, dtype=dtype), device=device)
    run(lambda x: torch.unique(x.t()[1:], return_inverse=True), x, device=device)


def test_equal(device):
    x = torch.randn(3, 4)
    changed = x.clone()
    changed[1, 1] += 1
    run(torch.equal, x, x.clone(), device=device)
    run(torch.equal, x, changed, device=device)
    run(torch.equal, x, x[:2], device=device)
    run(torch.equal, x[:0], x[:0], device=device)
    run(lambda x: (x / 0).equal(x / 0), torch.zeros(2), device=device)


def test_gradients(device):
    x = torch.randn(4, 5)
    ours = x.to(device).requires_grad_()
    theirs = x.clone().requires_grad_()
    for tensor in (ours, theirs):
        (tensor[tensor > 0].pow(2).sum() + tensor.masked_select(tensor < 0.2).sin().sum()).backward()
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_repeat_interleave(device, dtype):
    repeats = torch.tensor([2, 0, 3, 1], dtype=dtype)
    run(torch.repeat_interleave, repeats, device=device)
    run(lambda x, r: x.repeat_interleave(r, 0), torch.randn(4, 3), repeats, device=device)
    run(lambda r: torch.repeat_interleave(r, output_size=6), repeats, device=device)
    for wrong in (lambda r: torch.repeat_interleave(r, output_size=7), lambda r: torch.repeat_interleave(r - 1)):
        with pytest.raises(RuntimeError, match="allocated size does not match|can not be negative"):
            wrong(repeats.to(device))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_bincount(device, dtype):
    x = torch.tensor([1, 1, 4, 0], dtype=dtype)
    run(torch.bincount, x, device=device)
    run(lambda x: torch.bincount(x, minlength=7), x, device=device)
    for weights in (torch.ones(4), torch.arange(4)):
        run(torch.bincount, x, weights, device=device)
    if dtype.is_signed:
        with pytest.raises(RuntimeError, match="non-negative integral"):
            torch.bincount(-x.to(device))


def test_no_call_is_refused_without_a_reason(device):
    """The parts of a call may be refused too: the reason is the call's own."""
    calls = {
        "aten::_linalg_svd": lambda: torch.linalg.svdvals(torch.eye(300).to(device)),
        "aten::gt.Scalar": lambda: torch.ones(3, dtype=torch.int8, device=device) > 300,
        "aten::segment_reduce": lambda: torch.segment_reduce(
            torch.ones(3, device=device), "sum", lengths=torch.tensor([1, 2]).to(device)
        ),
    }
    for name, call in calls.items():
        call()
        assert name in {operator for operator, _ in torch_outboard.kernels.refused_operators()}
