# SPDX-License-Identifier: BSD-3-Clause
"""Copies that change more than bytes: lazily negated tensors, and masks of bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_outboard

COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": lambda x: torch._neg_view(x).clone(),
    "transposed": lambda x: torch._neg_view(x).t().contiguous(),
    "narrowed": lambda x: torch._neg_view(x)[:, 1:].clone(memory_format=torch.contiguous_format),
    "converted": lambda x: torch._neg_view(x).to(torch.int32 if x.is_floating_point() else torch.float32),
    "into": lambda x: torch.zeros_like(x).copy_(torch._neg_view(x)),
    "written": lambda x: torch._neg_view(torch._neg_view(torch.zeros_like(x)).copy_(x)),
    "written and converted": lambda x: torch._neg_view(torch.zeros(x.shape, device=x.device)).copy_(x),
    "onto itself": lambda x: x.clone().copy_(torch._neg_view(x)),
    "twice": lambda x: torch._neg_view(torch._neg_view(x)).clone(),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_lazily_negated_tensors(name: str, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.arange(-5, 7).reshape(3, 4).to(dtype)
    ours = x.to(device)
    torch_outboard.reset_coverage()
    result = COPIES[name](ours)
    assert {row.provider for row in torch_outboard.coverage()} <= {"generated", "native"}, torch_outboard.coverage()
    assert torch.equal(result.cpu(), COPIES[name](x))


def test_the_imaginary_parts_of_a_conjugate(device: torch.device) -> None:
    x = torch.randn(5, dtype=torch.complex64)
    ours = x.to(device).conj().imag
    torch_outboard.reset_coverage()
    result = ours + 1
    assert {row.provider for row in torch_outboard.coverage()} <= {"generated", "native"}, torch_outboard.coverage()
    assert torch.equal(result.cpu(), x.conj().imag + 1)


def test_masks_of_bytes_warn(device: torch.device) -> None:
    x, mask = torch.arange(4.0), torch.tensor([1, 0, 1, 0], dtype=torch.uint8)
    ours, at = x.to(device), mask.to(device)
    with pytest.warns(UserWarning, match="indexing with dtype torch.uint8 is now deprecated"):
        values = ours[at]
    assert torch.equal(values.cpu(), x[mask.bool()])
