# SPDX-License-Identifier: BSD-3-Clause
"""Corrections of Inductor's wrong lowerings: indices of the maximum in a window, the mean of nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_outboard.compile.generators import generators

Pool = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("dims", "pool"),
    [
        (2, lambda x: F.max_pool2d(x, 4, stride=2, padding=1, return_indices=True)),
        (3, lambda x: F.max_pool3d(x, 3, stride=2, return_indices=True)),
    ],
    ids=["2d", "3d"],
)
def test_the_first_of_equals(dims: int, pool: Pool, is_compiled: bool, device: torch.device) -> None:
    image = torch.randint(0, 3, (2, 3, *[9] * dims)).float()
    reversed_ = image.permute(*range(image.dim() - 1, -1, -1)).contiguous()  # another than the last dimension is dense
    ours = reversed_.to(device).permute(*range(image.dim() - 1, -1, -1))
    values, places = (torch.compile(pool) if is_compiled else pool)(ours)
    expected, at = pool(image)
    assert torch.equal(values.cpu(), expected)
    assert torch.equal(places.cpu(), at)


@pytest.mark.usefixtures("nothing_on_the_cpu")
@pytest.mark.parametrize(
    ("dtype", "pool"),
    [
        (torch.uint8, lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1, (1, 2), True, return_indices=True)),
        (torch.float32, lambda x: F.max_pool2d(x.to(memory_format=torch.channels_last), 3, 2, 1, return_indices=True)),
        # Along one side after the other.
        (torch.float32, lambda x: F.max_pool2d(x, 7, 2, 3, return_indices=True)),
        (torch.float16, lambda x: F.max_pool3d(x.unsqueeze(1), (2, 3, 3), 2, 1, return_indices=True)),
    ],
    ids=["uint8", "channels_last", "sides", "3d"],
)
def test_indices_of_windows_without_a_largest_element(dtype: torch.dtype, pool: Pool, device: torch.device) -> None:
    """The index is no place in the padding, which is as small as the elements; of several NaN it is the last one's."""
    image = torch.randn(2, 3, 9, 8)
    image[1, 0] = image[0, 1, 4:] = -torch.inf
    image[0, 0, :3, :3] = torch.nan if dtype.is_floating_point else 0
    image = image.to(dtype) if dtype.is_floating_point else image.relu().mul(4).to(dtype)
    for ours, expected in zip(pool(image.to(device)), pool(image), strict=True):
        torch.testing.assert_close(ours.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_the_mean_of_nothing_is_not_a_number(is_compiled: bool, device: torch.device) -> None:
    for function in (torch.var_mean, torch.std_mean):
        run = torch.compile(function) if is_compiled else function
        assert all(result.isnan() for result in run(torch.empty(0, 3, device=device)))


def test_what_an_earlier_loop_stored_is_read_under_a_mask(device: torch.device) -> None:
    """A loop of the kernel stores running sums while it sums the row; the next loop reads some of them."""
    if generators().of(device.index).name == "triton":
        pytest.skip("upstream: torch 2.11's Triton kernels drop the mask, on CUDA too")

    def chosen(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[0], device=x.device)
        values: torch.Tensor = torch.ops.aten._unsafe_masked_index(x.cumsum(0), mask, [places], 0.0)
        return values * x.sum()

    x, mask = torch.randint(-9, 9, (300,)).float(), torch.rand(300) > 0.5
    result = torch.compile(chosen)(x.to(device), mask.to(device))
    assert torch.equal(result.cpu(), chosen(x, mask))


@pytest.mark.usefixtures("nothing_on_the_cpu")
def test_a_plan_with_quotients_of_sizes_logs_no_warning(device: torch.device) -> None:
    """Torch 2.11 and 2.12 warn about bounds that they don't have."""
    messages: list[str] = []

    class RecordingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    log, handler = logging.getLogger("torch.utils._sympy.interp"), RecordingHandler(logging.WARNING)
    log.addHandler(handler)
    try:
        image = torch.randn(2, 3, 14, 14, 3).to(device).requires_grad_()
        F.max_pool2d(image[..., 0], 3, 2, 1).sum().backward()
        F.max_pool2d(torch.randn(4, 64, 14, 14).to(device).requires_grad_(), 3, 2, 1).sum().backward()
    finally:
        log.removeHandler(handler)
    assert messages == []


def test_what_has_no_tensors_runs_by_kernels(device: torch.device) -> None:
    """A plan needs no tensor of the call."""
    if not generators().eager().dialect.has_double:
        pytest.skip("capability: doubles, in which torch computes the places of triangles")
    for sizes in ((5, 7, -2), (6, 3, 1), (4, 4, 0)):
        for function in (torch.tril_indices, torch.triu_indices):
            assert torch.equal(function(*sizes, device=device).cpu(), function(*sizes))
    window = torch.kaiser_window(300, False, 6.5, device=device)
    torch.testing.assert_close(window.cpu(), torch.kaiser_window(300, False, 6.5))


@pytest.mark.usefixtures("nothing_on_the_cpu")
@pytest.mark.parametrize(
    "resized",
    [
        lambda x: F.interpolate(x, (7, 6), mode="bilinear"),
        lambda x: F.interpolate(x, (5, 3), mode="bilinear", antialias=True),
    ],
    ids=["bilinear", "smooth"],
)
def test_infinities_stay_infinite_in_a_resized_image(
    resized: Callable[[torch.Tensor], torch.Tensor], device: torch.device
) -> None:
    image = torch.randn(2, 3, 4, 5)
    image[0, 0, 1, 1], image[0, 1, 3, 4], image[1, 2] = torch.inf, -torch.inf, -torch.inf
    torch.testing.assert_close(resized(image.to(device)).cpu(), resized(image), equal_nan=True)


@pytest.mark.usefixtures("nothing_on_the_cpu")
@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.avg_pool2d(x, 8, 1, 3),
        lambda x: F.avg_pool3d(x.unsqueeze(1), (3, 6, 4), (1, 4, 3), (1, 3, 0), True, False),
    ],
    ids=["2d", "3d"],
)
def test_means_of_large_windows(pool: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> None:
    _compare_gradients(pool, torch.randn(2, 3, 11, 10), device)


@pytest.mark.usefixtures("nothing_on_the_cpu")
@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.avg_pool1d(x.flatten(2), 3, 2, 0, True),
        lambda x: F.avg_pool2d(x, (3, 2), (2, 3), 1, True),
        lambda x: F.avg_pool2d(x, (3, 2), (2, 3), 1, True, False),
        lambda x: F.avg_pool2d(x, 3, 2, 0, True, True, 5),
        lambda x: F.avg_pool2d(x, (7, 5), 3, 2, True),
        lambda x: F.avg_pool3d(x.unsqueeze(1), 2, (3, 2, 2), (1, 0, 1), True),
    ],
    ids=["1d", "2d", "inside", "divisor", "large", "3d"],
)
def test_gradients_of_means_whose_last_windows_reach_out(
    pool: Callable[[torch.Tensor], torch.Tensor], device: torch.device
) -> None:
    """With ceil_mode, a window may reach beyond the padding: only what it has of the padded image counts."""
    _compare_gradients(pool, torch.randn(2, 3, 8, 9), device)


@pytest.mark.parametrize(
    "pool",
    [lambda x: F.avg_pool2d(x, 3, 2, 1, True), lambda x: F.lp_pool2d(x.abs() + 1, 2, 3, 2, True)],
    ids=["means", "norms"],
)
def test_compiled_gradients_of_windows_that_reach_out(pool: Callable[[Any], Any], device: torch.device) -> None:
    _compare_gradients(torch.compile(pool), torch.randn(2, 3, 6, 7), device, pool)


def _compare_gradients(
    function: Callable[[Any], Any], x: torch.Tensor, device: torch.device, reference: Callable[[Any], Any] | None = None
) -> None:
    x, ours = x.requires_grad_(), x.detach().to(device).requires_grad_()
    result, expected = function(ours), (reference or function)(x)
    weights = torch.randn_like(expected)
    result.backward(weights.to(device)), expected.backward(weights)
    torch.testing.assert_close(result.cpu(), expected)
    torch.testing.assert_close(ours.grad.cpu(), x.grad)
