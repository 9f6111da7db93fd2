# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions and their gradients run as generated kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernels.test_provider import run
from torch_outboard import _C


@pytest.fixture(autouse=True)
def _without_a_library() -> Iterator[None]:
    """Leave out the driver's own kernels: a vendor's library may take convolutions."""
    _C.set_providers(0, 2, 1)
    try:
        yield
    finally:
        _C.set_providers(1, 2, 1)


def whole(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return numbers whose products and sums are exact in the type."""
    return torch.randint(-3, 4, sizes).to(dtype)


def gradients(function: Callable[..., Any], *arguments: torch.Tensor, device: torch.device) -> None:
    """Compare a function's result and gradients with the CPU's."""

    def call(scale: torch.Tensor, *given: torch.Tensor) -> list[torch.Tensor]:
        given = tuple(one.detach().requires_grad_() for one in given)
        result = function(*given)
        return [result.detach(), *torch.autograd.grad(result, given, scale)]

    scale = whole(*function(*arguments).shape, dtype=arguments[0].dtype)
    run(call, scale, *arguments, device=device)


def test_with_stride_padding_dilation_and_groups(device: torch.device) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, b, stride=(1, 2), padding=(2, 1), dilation=(2, 1), groups=2)

    gradients(function, whole(2, 6, 12, 11), whole(8, 3, 3, 2), whole(8), device=device)
    gradients(function, whole(3, 10, 7, 6), whole(14, 5, 2, 4), whole(14), device=device)
    for empty in (whole(0, 6, 12, 11), whole(2, 6, 12, 11)[:0]):
        run(function, empty, whole(8, 3, 3, 2), whole(8), device=device)


def test_transposed(device: torch.device) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose1d(x, w, b, stride=2, padding=1, output_padding=1)

    gradients(function, whole(2, 3, 5), whole(3, 4, 2), whole(4), device=device)


def test_three_dimensions_and_other_layouts(device: torch.device) -> None:
    run(lambda x, w: F.conv3d(x, w, stride=(1, 2, 1)), whole(2, 3, 5, 6, 4), whole(4, 3, 3, 2, 2), device=device)
    x = whole(2, 4, 12, 11).contiguous(memory_format=torch.channels_last)
    run(lambda x, w: F.conv2d(x[:, :, 1:, ::2], w.flip(0), padding=1), x, whole(8, 4, 3, 3), device=device)


def test_halves(device: torch.device) -> None:
    run(F.conv1d, *(whole(*sizes, dtype=torch.bfloat16) for sizes in ((2, 5, 9), (4, 5, 3), (4,))), device=device)
