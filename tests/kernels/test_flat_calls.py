# SPDX-License-Identifier: BSD-3-Clause
"""Elementwise calls whose tensors have the same dense layout share a plan, whatever their rank and memory format."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from torch_outboard import _C

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

SHAPES = ((7,), (3, 5), (2, 1, 5), (2, 3, 4, 5), (2, 1, 3, 2, 4))
CALLS: dict[str, Call] = {
    "two tensors": torch.add,
    "a number": lambda x, _: x * 0.625,
    "a scalar tensor": lambda x, y: x - y.flatten()[3],
    "a mask": lambda x, y: x.clone().masked_fill_(y > 0, -2.0),
    "three tensors": lambda x, y: torch.where(x > y, x, y.exp()),
    "in place": lambda x, y: x.clone().mul_(y),
    "in place, aliased": lambda x, _: x.clone().add_(x),
    "the argument is the result": lambda x, y: torch.add(x, y, out=y.clone()),
    "an argument twice": lambda x, _: x * x,
    "a cast": lambda x, _: x.to(torch.float16),
    "a gradient": lambda x, y: torch.ops.aten.gelu_backward(x, y),
}


def permuted(x: torch.Tensor) -> torch.Tensor:
    return x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))


def check(call: Call, x: torch.Tensor, y: torch.Tensor, device: torch.device) -> None:
    """Compare a call with the CPU's: values, sizes and strides. The device's tensors keep their strides."""
    wanted = call(x, y)
    got = call(x.to(device), y.to(device))
    assert got.shape == wanted.shape and got.stride() == wanted.stride()
    torch.testing.assert_close(got.cpu(), wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("what", CALLS)
def test_tensors_of_one_layout_share_a_plan(device: torch.device, what: str) -> None:
    check(CALLS[what], torch.randn(11), torch.randn(11), device)
    before = _C.built_plans()
    for shape in SHAPES:
        x, y = torch.randn(shape), torch.randn(shape)
        check(CALLS[what], x, y, device)
        check(CALLS[what], permuted(x), permuted(y), device)
        if len(shape) == 4:
            last = [tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, y)]
            check(CALLS[what], *last, device)
    assert _C.built_plans() == before


NOT_FLAT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "another order": permuted,
    "a part": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "expanded": lambda x: x[:1].expand(x.shape),
    "broadcast": lambda x: x[:1],
    "no elements": lambda x: x[:, :0],
}


@pytest.mark.parametrize("what", NOT_FLAT)
@pytest.mark.parametrize("is_first", [False, True])
def test_tensors_of_other_layouts_are_not_flattened(device: torch.device, what: str, is_first: bool) -> None:
    x, base = torch.randn(4, 3, 5), torch.randn(4, 3, 5)
    ours_x, ours_base = x.to(device), base.to(device)
    if what == "no elements":
        x, ours_x = x[:, :0], ours_x[:, :0]
    y, ours_y = NOT_FLAT[what](base), NOT_FLAT[what](ours_base)
    pairs = [(y, x), (ours_y, ours_x)] if is_first else [(x, y), (ours_x, ours_y)]
    wanted, got = (left + right for left, right in pairs)
    assert got.shape == wanted.shape and got.stride() == wanted.stride()
    torch.testing.assert_close(got.cpu(), wanted)


def test_conjugated_tensors_keep_their_values(device: torch.device) -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    wanted = x.conj() * x
    torch.testing.assert_close((x.to(device).conj() * x.to(device)).cpu(), wanted)


def test_softmax_of_elementwise_results(device: torch.device) -> None:
    """The results of flat calls are whole tensors for operators that read sizes and strides."""
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    wanted = F.softmax(F.relu(x) + x, 1).sum(-1)
    torch.testing.assert_close(F.softmax(F.relu(x.to(device)) + x.to(device), 1).sum(-1).cpu(), wanted)
