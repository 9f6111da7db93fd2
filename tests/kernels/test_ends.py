# SPDX-License-Identifier: BSD-3-Clause
"""Values at the ends of types: NaN, infinities, zeros of both signs, and steps in a type's own lattice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

_ENDS = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -1.0, 2.5, 6e-8, -6e-8]


@pytest.fixture(autouse=True)
def _by_kernels(nothing_on_the_cpu: None) -> None:
    pass


def _bits(values: torch.Tensor) -> torch.Tensor:
    """Return the bits of floats, so that zeros of different signs differ; all NaN are equal."""
    integer = torch.int16 if values.element_size() == 2 else torch.int32
    return torch.where(values.isnan(), torch.nan, values).view(integer)


def _assert_same(operator: Callable[..., torch.Tensor], device: torch.device, *inputs: torch.Tensor) -> None:
    got, expected = operator(*(tensor.to(device) for tensor in inputs)).cpu(), operator(*inputs)
    assert torch.equal(_bits(got), _bits(expected)), (inputs, got, expected)


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_next_half(dtype: torch.dtype, is_compiled: bool, device: torch.device) -> None:
    every = torch.arange(-(2**15), 2**15, 7).to(torch.int16).view(dtype)
    step = torch.compile(torch.nextafter) if is_compiled else torch.nextafter
    for target in (torch.inf, -torch.inf, 0.0, torch.nan):
        to = torch.tensor([target], dtype=dtype)
        got = step(every.to(device), to.to(device)).cpu()
        assert torch.equal(_bits(got), _bits(torch.nextafter(every, to)))
    ends = torch.tensor(_ENDS, dtype=dtype)
    assert torch.equal(
        _bits(step(ends.to(device)[:, None], ends.to(device)).cpu()), _bits(torch.nextafter(ends[:, None], ends))
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_taken_apart_and_rounded_in_their_own_lattice(dtype: torch.dtype, device: torch.device) -> None:
    every = torch.arange(-(2**15), 2**15, 5).to(torch.int16).view(dtype)
    places = torch.arange(every.numel(), dtype=torch.int32) % 9 - 4
    for operator in (
        lambda x: torch.frexp(x)[0],
        lambda x: torch.ldexp(x, places.to(x.device)),
        lambda x: torch.round(x, decimals=1),
        lambda x: torch.round(x, decimals=-2),
        torch.frac,
    ):
        _assert_same(operator, device, every)
    assert torch.equal(torch.frexp(every.to(device))[1].cpu(), torch.frexp(every)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("exponent", [0.5, -0.5, -1, -2, 3])
def test_powers_of_ends(exponent: float, dtype: torch.dtype, device: torch.device) -> None:
    ends = torch.tensor(_ENDS[:8], dtype=dtype)
    for operator in (lambda x: x**exponent, lambda x: torch._foreach_pow([x, x], exponent)[0]):
        got, expected = operator(ends.to(device)).cpu(), operator(ends)
        torch.testing.assert_close(got, expected, equal_nan=True)
        assert torch.equal(got.signbit()[:3], expected.signbit()[:3])


def test_bounds_keep_the_sign_of_zero(device: torch.device) -> None:
    ends = torch.tensor(_ENDS * 2)
    for operator in (torch.relu, F.relu6, lambda x: x.clamp(0, 1), lambda x: x.clamp_min(0)):
        _assert_same(operator, device, ends)


def test_the_gradient_of_a_sigmoid_of_large_numbers(device: torch.device) -> None:
    """The products are taken in the CPU's order, which decides which of them overflow."""
    ends = torch.tensor([*_ENDS, 3e38, -3e38])
    got = torch.ops.aten.sigmoid_backward(ends.to(device)[:, None], ends.to(device)).cpu()
    torch.testing.assert_close(got, torch.ops.aten.sigmoid_backward(ends[:, None], ends), equal_nan=True)


# Beyond "zeros", the CPU's gradients read memory that isn't theirs at such places.
@pytest.mark.parametrize(("dims", "mode"), [(2, "bilinear"), (2, "nearest"), (2, "bicubic"), (3, "bilinear")])
def test_samples_at_places_that_are_no_numbers(dims: int, mode: str, device: torch.device) -> None:
    ends = torch.tensor([0.0, torch.inf, -torch.inf, torch.nan, 0.3, 20.0])
    grid = torch.stack([ends.repeat(6), *[ends.repeat_interleave(6)] * (dims - 1)], -1).view(
        1, *[1] * (dims - 1), 36, dims
    )
    image = torch.rand(1, 2, *[4] * dims)

    def sampled(image: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        grid = grid.detach().requires_grad_()
        result = F.grid_sample(image, grid, mode, "zeros", False)
        return result.detach().cpu(), torch.autograd.grad(result.sum(), grid)[0].cpu()

    for got, expected in zip(sampled(image.to(device), grid.to(device)), sampled(image, grid), strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)
