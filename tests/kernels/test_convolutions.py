# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions and their gradients run as generated kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_outboard
from kernels.test_provider import run
from torch_outboard import _C
from torch_outboard.kernels.plans import lower


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

    def call(scale: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
        inputs = tuple(tensor.detach().requires_grad_() for tensor in inputs)
        result = function(*inputs)
        return [result.detach(), *torch.autograd.grad(result, inputs, scale)]

    scale = whole(*function(*arguments).shape, dtype=arguments[0].dtype)
    # The CPU's strides of dimensions of size 1 depend on whether oneDNN has the type on the
    # processor.
    run(call, scale, *arguments, device=device, has_strides_of_one=False)


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


@pytest.mark.usefixtures("own_plans")
@pytest.mark.parametrize("groups", [1, pytest.param(2, marks=pytest.mark.long)])
def test_tiles_of_each_layout(groups: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adjacent steps are adjacent channels, if they are adjacent in memory, else places of a window or pixels."""
    monkeypatch.setattr(lower, "is_cpu", lambda device: False)
    channels = 18 * groups
    sides = (whole(2, channels, 9, 7), whole(20 * groups, 18, 3, 2), whole(channels, 20, 2, 3))
    options: dict[str, Any] = {"stride": (1, 2), "padding": (2, 1), "groups": groups}
    for laid_out in itertools.product((torch.Tensor.contiguous, by_channels), repeat=2):
        x, weight, turned = (function(tensor) for function, tensor in zip((*laid_out, laid_out[1]), sides, strict=True))
        gradients(lambda x, w: F.conv2d(x, w, **options), x, weight, device=device)
        gradients(lambda x, w: F.conv_transpose2d(x, w, **options), x, turned, device=device)


def test_halves(device: torch.device) -> None:
    run(F.conv1d, *(whole(*sizes, dtype=torch.bfloat16) for sizes in ((2, 5, 9), (4, 5, 3), (4,))), device=device)


DEPTHWISE: dict[str, tuple[torch.dtype, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3 by 3": (torch.bfloat16, (2, 16, 9, 10), (3, 3), {"padding": 1}),
    "apart": (torch.float32, (2, 8, 11, 7), (3, 2), {"padding": (1, 0), "stride": 2}),
    "dilated": (torch.float16, (1, 16, 8, 13), (3, 3), {"padding": (0, 2), "dilation": (1, 2)}),
    "wide": (torch.float32, (3, 12, 3, 17), (1, 7), {"padding": (0, 3), "stride": (2, 1)}),
    "1-d": (torch.bfloat16, (2, 8, 13), (5,), {"padding": 4, "dilation": 2}),
    "3-d": (torch.float32, (1, 4, 4, 5, 6), (2, 3, 3), {"padding": 1, "stride": (1, 2, 1)}),
    "one pixel": (torch.float16, (4, 24, 1, 1), (3, 3), {"padding": 1}),
}
CONVOLUTIONS = {3: (F.conv1d, F.conv_transpose1d), 4: (F.conv2d, F.conv_transpose2d), 5: (F.conv3d, F.conv_transpose3d)}


def by_channels(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same numbers, of which adjacent channels are adjacent in memory."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


@pytest.mark.parametrize(
    "case",
    [pytest.param(key, marks=() if key in ("3 by 3", "apart", "one pixel") else pytest.mark.long) for key in DEPTHWISE],
)
def test_depthwise(case: str, device: torch.device) -> None:
    dtype, size, window, options = DEPTHWISE[case]
    channels = size[1]
    weight, bias = whole(channels, 1, *window, dtype=dtype), whole(channels, dtype=dtype)
    x = by_channels(whole(*size, dtype=dtype))
    plain, transposed = CONVOLUTIONS[len(size)]
    gradients(lambda x, w, b: plain(x, w, b, groups=channels, **options), x, weight, bias, device=device)
    gradients(lambda x, w, b: transposed(x, w, b, groups=channels, **options), x, weight, bias, device=device)


@pytest.mark.parametrize("cut", [(0, 1, 9, 0), (0, 8, 16, 0), (0, 0, 16, 1), (1, 0, 8, 0)], ids=str)
def test_depthwise_of_memory_that_is_not_aligned(cut: tuple[int, ...], device: torch.device) -> None:
    batch, first, last, row = cut

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = x[batch:, first:last, :, row:]
        return F.conv2d(x, w[: x.size(1)], padding=1, groups=x.size(1))

    x, weight = by_channels(whole(2, 17, 5, 6, dtype=torch.bfloat16)), whole(17, 1, 3, 3, dtype=torch.bfloat16)
    gradients(function, x, weight, device=device)


@pytest.mark.parametrize(
    ("dtype", "of_group"),
    [
        (torch.bfloat16, 4),
        pytest.param(torch.float32, 2, marks=pytest.mark.long),
        pytest.param(torch.float16, 8, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_groups_of_few_channels(dtype: torch.dtype, of_group: int, device: torch.device) -> None:
    channels = 16
    x = by_channels(whole(2, channels, 7, 9, dtype=dtype))
    weight, bias = whole(channels, of_group, 3, 3, dtype=dtype), whole(channels, dtype=dtype)
    options: list[dict[str, Any]] = [{"padding": 1}, {"stride": (1, 2), "padding": (0, 2), "dilation": (2, 1)}]
    for settings in options:
        settings["groups"] = channels // of_group
        gradients(lambda x, w, b, settings=settings: F.conv2d(x, w, b, **settings), x, weight, bias, device=device)


def test_depthwise_with_a_weight_whose_places_are_not_aligned(device: torch.device) -> None:
    x, weight = by_channels(whole(2, 8, 5, 6, dtype=torch.bfloat16)), whole(3, 3, 9, dtype=torch.bfloat16)
    run(lambda x, w: F.conv2d(x, w[:, :, :8].permute(2, 0, 1)[:, None], groups=8), x, weight, device=device)


def test_depthwise_with_places_far_apart(device: torch.device) -> None:
    x, weight = by_channels(whole(1, 8, 3, 80)), whole(8, 1, 1, 3)
    gradients(lambda x, w: F.conv2d(x, w, dilation=(1, 30), groups=8), x, weight, device=device)


def test_depthwise_of_nothing(device: torch.device) -> None:
    run(lambda x, w: F.conv2d(x, w, groups=8), by_channels(whole(0, 8, 5, 5)), whole(8, 1, 3, 3), device=device)


@pytest.mark.parametrize("channels", [3, 64])
def test_a_gradient_of_another_size_is_refused(channels: int, device: torch.device) -> None:
    """Of large calls too, which the CPU's kernel does not try, and after a call about whose bias the caller lied."""

    def backward(grad: torch.Tensor, bias: int, stride: int, is_transposed: bool) -> Any:
        operands = (x, weight.transpose(0, 1)) if is_transposed else (x, weight)
        constants = ([bias], [stride] * 2, [1, 1], [1, 1], is_transposed, [0, 0], 1, [True] * 3)
        arguments = [tensor.to(device) for tensor in (grad, *operands)]
        return torch.ops.aten.convolution_backward(*arguments, *constants)

    right = (40, 32)
    x, weight = whole(2, channels, *right), whole(channels + 1, channels, 3, 3)
    for is_transposed in (False, True):
        for bias in (channels + 1, 0, channels + 1):
            backward(whole(2, channels + 1, *right), bias, 1, is_transposed)
        for size in ((39, 32), (40, 1), (41, 33)):
            with pytest.raises(RuntimeError, match="size|primitive"):
                backward(whole(2, channels + 1, *size), channels + 1, 1, is_transposed)
        with pytest.raises(RuntimeError, match="size|primitive|channels"):
            backward(whole(2, channels, *right), channels + 1, 1, is_transposed)
        torch_outboard.reset_coverage()
        backward(whole(2, channels + 1, *right), channels + 1, 1, is_transposed)
        assert {row.provider for row in torch_outboard.coverage()} == {"generated"}  # not the class is refused
        for stride in (0, -1):
            with pytest.raises(RuntimeError, match="stride"):
                backward(whole(2, channels + 1, *right), channels + 1, stride, is_transposed)
