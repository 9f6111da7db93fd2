# SPDX-License-Identifier: BSD-3-Clause
"""Norms as generated kernels: values, gradients, and how many launches they take; sums of images by channel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import torch_outboard
from tests.kernels.test_lists import kernels

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SHAPES = {
    "rows": ((37, 700), 1),
    "few rows": ((2, 3, 5000), 1),
    "short rows": ((300, 12), 1),
    "two dimensions": ((9, 5, 40), 2),
    "all dimensions": ((6, 40), 2),
    "rows of one": ((6, 1), 1),
    "no rows": ((0, 40), 1),
    "no elements": ((3, 0), 1),
}


def normed(
    place: torch.device | str, inputs: Sequence[torch.Tensor], normalized: int, eps: float | None
) -> list[torch.Tensor]:
    """Return the norm and its gradients."""
    x, gradient, *weight = (tensor.to(place).detach().requires_grad_() for tensor in inputs)
    result = F.rms_norm(x, x.shape[x.dim() - normalized :], *weight, eps=eps)
    return [result.detach(), *torch.autograd.grad(result, [x, *weight], gradient)]


def close(ours: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    for result, wanted in zip(ours, exact, strict=True):
        assert result.dtype == dtype and result.shape == wanted.shape and result.stride() == wanted.stride()
        scale = wanted.abs().max().clamp(min=1) if wanted.numel() else 1
        torch.testing.assert_close(result.cpu().double() / scale, wanted / scale, atol=TOLERANCES[dtype], rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("has_weight", [True, False], ids=["weight", "no weight"])
@pytest.mark.parametrize("name", SHAPES)
def test_rms_norm(name: str, has_weight: bool, dtype: torch.dtype, device: torch.device) -> None:
    shape, normalized = SHAPES[name]
    weight = [torch.randn(shape[len(shape) - normalized :])] if has_weight else []
    # Gradients are differences of numbers that a row's root mean square divides: none is near 0.
    x = torch.randn(shape)
    x += 0.5 * x.sign()
    inputs = [tensor.to(dtype) for tensor in (x, torch.randn(shape), *weight)]
    for eps in (None, 1e-3):
        exact_eps = torch.finfo(torch.float32).eps if eps is None else eps
        torch_outboard.reset_coverage()
        ours = normed(device, inputs, normalized, eps)
        calls = torch_outboard.coverage()
        assert calls.calls("aten::_fused_rms_norm", "generated") == 1, calls
        assert calls.calls("aten::_fused_rms_norm_backward", "generated") == 1, calls
        assert not calls.calls(provider="host") + calls.calls(provider="fallback"), calls
        close(ours, normed("cpu", [tensor.double() for tensor in inputs], normalized, exact_eps), dtype)


def test_rms_norm_of_strided_tensors(device: torch.device) -> None:
    x, gradient, weight = torch.randn(40, 6, 9).transpose(0, 2), torch.randn(9, 1, 40).expand(9, 6, 40), torch.randn(80)
    ours = [tensor.to(device) for tensor in (x, gradient)]
    ours = normed(device, [ours[0], ours[1], weight.to(device)[::2]], 1, 1e-5)
    close(ours, normed("cpu", [tensor.double() for tensor in (x, gradient, weight[::2])], 1, 1e-5), torch.float32)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)], ids=str)
def test_one_of_the_gradients(wanted: tuple[bool, bool], device: torch.device) -> None:
    x, weight = (torch.randn(shape, requires_grad=needs) for shape, needs in zip([(5, 70), (70,)], wanted, strict=True))
    ours = [tensor.detach().to(device).requires_grad_(tensor.requires_grad) for tensor in (x, weight)]
    for values, scale in ((x, weight), ours):
        F.rms_norm(values, [70], scale).square().sum().backward()
    for leaf, wanted_leaf in zip(ours, (x, weight), strict=True):
        if wanted_leaf.grad is None:
            assert leaf.grad is None
        else:
            torch.testing.assert_close(leaf.grad.cpu(), wanted_leaf.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_rms_norm_is_one_launch_and_its_gradients_are_two(
    dtype: torch.dtype, device: torch.device, tmp_path: Path
) -> None:
    x = torch.randn(6, 30, 320, device=device, dtype=dtype, requires_grad=True)
    norm = torch.nn.RMSNorm(320, device=device, dtype=dtype)
    gradient = torch.randn(6, 30, 320, device=device, dtype=dtype)
    torch.autograd.grad(norm(x), [x, norm.weight], gradient)  # the plans are there from here on
    names = kernels(lambda: norm(x), device, tmp_path)
    if not names:
        pytest.skip("capability: times of work, without which profiles show no kernels")
    assert names == ["aten::_fused_rms_norm/0"]
    result = norm(x)
    names = kernels(lambda: torch.autograd.grad(result, [x, norm.weight], gradient), device, tmp_path)
    assert 1 <= len(names) <= 2 and all(launch.startswith("aten::_fused_rms_norm_backward/") for launch in names), names


# Rows of 8 images, whose channels have 4096 neighbouring elements each: reduced in two steps.
IMAGES = (8, 6, 64, 64)


def batch_normed(place: torch.device | str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the norm, the running statistics and the gradients."""
    x, gradient, weight, bias, *running = (tensor.to(place).detach().clone() for tensor in inputs)
    leaves = [x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    result = F.batch_norm(x, *running, weight, bias, training=True)
    return [result.detach(), *running, *torch.autograd.grad(result, leaves, gradient)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_batch_norm_of_large_images(dtype: torch.dtype, device: torch.device) -> None:
    x, channels = (torch.randn(IMAGES) * 3 + 1).to(dtype), IMAGES[1:2]
    inputs = [x, torch.randn(IMAGES).to(dtype), *(torch.rand(channels) for _ in range(4))]
    ours = batch_normed(device, inputs)
    exact = batch_normed("cpu", [tensor.double() for tensor in inputs])
    for result, wanted in zip(ours, exact, strict=True):
        scale = wanted.abs().max().clamp(min=1)
        torch.testing.assert_close(result.cpu().double() / scale, wanted / scale, atol=TOLERANCES[dtype], rtol=0)
    for result, wanted in zip(ours, batch_normed(device, inputs), strict=True):
        assert torch.equal(result.cpu(), wanted.cpu())


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_batch_norm_reads_images_twice(device: torch.device, tmp_path: Path) -> None:
    """Forward, each channel's statistics in two steps, then the norm; backward, two sums in two steps each."""
    x, norm = torch.randn(IMAGES, device=device, requires_grad=True), torch.nn.BatchNorm2d(6, device=device)
    leaves, gradient = [x, norm.weight, norm.bias], torch.randn(IMAGES, device=device)
    torch.autograd.grad(norm(x), leaves, gradient)  # the plans are there from here on
    norm.num_batches_tracked = None
    names = kernels(lambda: norm(x), device, tmp_path)
    if not names:
        pytest.skip("capability: times of work, without which profiles show no kernels")
    assert len(names) <= 3, names
    result = norm(x)
    names = kernels(lambda: torch.autograd.grad(result, leaves, gradient), device, tmp_path)
    assert len(names) <= 4, names


@pytest.mark.parametrize("keepdim", [False, True], ids=["squeezed", "kept"])
def test_sums_and_deviations_by_channel(keepdim: bool, device: torch.device) -> None:
    x = torch.randn(IMAGES) + 2
    for dtype in (torch.float32, torch.bfloat16):
        ours, exact = x.to(dtype).to(device), x.to(dtype).double()
        dims = (0, -1, 2)
        results = [ours.sum(dims, keepdim), *torch.var_mean(ours, dims, correction=1, keepdim=keepdim)]
        wanted = [exact.sum(dims, keepdim), *torch.var_mean(exact, dims, correction=1, keepdim=keepdim)]
        for result, reference in zip(results, wanted, strict=True):
            assert result.dtype == dtype and result.shape == reference.shape
            torch.testing.assert_close(result.cpu().double(), reference, atol=0, rtol=TOLERANCES[dtype])
