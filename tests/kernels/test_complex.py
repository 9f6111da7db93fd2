# SPDX-License-Identifier: BSD-3-Clause
"""Complex numbers in generated kernels: values, gradients, launches, and what is refused."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_outboard

from .test_lists import kernels

Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]

# Of two matrices of complex numbers, and one of reals.
CALLS: dict[str, Function] = {
    "abs": lambda x, y, r: x.abs(),
    "abs to out": lambda x, y, r: torch.abs(x, out=torch.empty_like(r)),
    "add": lambda x, y, r: x + y,
    "add a number": lambda x, y, r: x + (1.5 - 2j),
    "add a number to reals": lambda x, y, r: r + 2j,
    "add a product": lambda x, y, r: torch.add(x, y, alpha=2 - 1j),
    "add in place": lambda x, y, r: x.clone().add_(r, alpha=2),
    "add reals": lambda x, y, r: r + x,
    "addcmul": lambda x, y, r: torch.addcmul(x, y, r.to(x.dtype), value=2 + 1j),
    "angle": lambda x, y, r: x.angle(),
    "complex": lambda x, y, r: torch.complex(r, r),
    "conj_physical": lambda x, y, r: torch.conj_physical(x[:, ::2]),
    "conj_physical in place": lambda x, y, r: x.clone().conj_physical_(),
    "conjugated": lambda x, y, r: x.conj().resolve_conj(),
    "conjugated, into": lambda x, y, r: y.clone().conj().copy_(x.T.contiguous().T),
    "conjugated, of reals": lambda x, y, r: y.clone().conj().copy_(r),
    "conjugated, parts": lambda x, y, r: (x.conj().real.clone(), x.conj().imag.clone()),
    "conjugated, widened": lambda x, y, r: x.conj().to(torch.complex128),
    "converted": lambda x, y, r: x.to(torch.complex64 if x.dtype == torch.complex128 else torch.complex128),
    "converted to bools": lambda x, y, r: (x * (r > 1)).to(torch.bool),
    "copied apart": lambda x, y, r: x.T.contiguous(),
    "copied with gaps": lambda x, y, r: torch.zeros_like(x)[:, ::2].copy_(x[:, 1::2]),
    "div": lambda x, y, r: x / y,
    "div by a number": lambda x, y, r: x / (0.5 - 3j),
    "div by reals": lambda x, y, r: x / r,
    "div of a number": lambda x, y, r: (1 + 2j) / y,
    "exp": lambda x, y, r: x.exp(),
    "eq": lambda x, y, r: (x == y, x == x.clone()),
    "fill a column": lambda x, y, r: x.clone()[:, 1].fill_(3 - 1j),
    "masked_fill": lambda x, y, r: x.masked_fill(r > 1, 2j),
    "mean of rows": lambda x, y, r: x.mean(1),
    "mul": lambda x, y, r: x * y,
    "mul a number": lambda x, y, r: x * 2j,
    "mul a row": lambda x, y, r: x * y[0],
    "mul conjugated": lambda x, y, r: x * y.conj(),
    "mul in place": lambda x, y, r: x.clone().mul_(y),
    "mul reals": lambda x, y, r: x * r,
    "mul the strided to out": lambda x, y, r: torch.mul(x[:, ::2], y[:, 1::2], out=torch.zeros_like(x)[:, ::2]),
    "ne": lambda x, y, r: (x != y, x != 1j),
    "neg": lambda x, y, r: -x,
    "negated lazily": lambda x, y, r: torch._neg_view(x.conj()).clone(),
    "parts": lambda x, y, r: (x.real + 1, x.imag.T, torch.view_as_real(x) * 2),
    "polar": lambda x, y, r: torch.polar(r, r),
    "reciprocal": lambda x, y, r: x.reciprocal(),
    "sgn": lambda x, y, r: x.sgn(),
    "sub": lambda x, y, r: 1j - x - y,
    "sum": lambda x, y, r: x.sum(),
    "sum of rows": lambda x, y, r: x.T.sum(1),
    "view_as_complex": lambda x, y, r: torch.view_as_complex(torch.stack((r, r + 1), -1)) * 2,
    "where": lambda x, y, r: torch.where(r > 1, x, y),
    "where a number": lambda x, y, r: torch.where(r > 1, x, 1j),
    "zero_": lambda x, y, r: x.clone()[:, ::2].zero_(),
}


def inputs_of(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(torch.seed() % 1000)
    complexes = [torch.randn(3, 4, dtype=dtype, generator=generator) for _ in range(2)]
    return [*complexes, torch.rand(3, 4, dtype=dtype.to_real(), generator=generator) * 2 + 0.1]


def on_device(function: Callable[[], Any]) -> Any:
    torch_outboard.reset_coverage()
    result = function()
    assert {row.provider for row in torch_outboard.coverage()} <= {"generated", "native"}, torch_outboard.coverage()
    return result


def assert_near(ours: Any, wanted: Any, exact: Any) -> None:
    lists = ([each] if isinstance(each, torch.Tensor) else each for each in (ours, wanted, exact))
    for result, right, wide in zip(*lists, strict=True):
        assert result.dtype == right.dtype and result.shape == right.shape and result.stride() == right.stride()
        # As near to the value in double precision as torch's own bounds for the type.
        torch.testing.assert_close(result.cpu(), wide.to(result.dtype), equal_nan=True)


def widened(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.to(torch.complex128 if tensor.is_complex() else torch.float64) for tensor in tensors]


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, device: torch.device) -> None:
    inputs = inputs_of(torch.complex64)
    ours = [tensor.to(device) for tensor in inputs]
    results = on_device(lambda: CALLS[name](*ours))
    assert_near(results, CALLS[name](*inputs), CALLS[name](*widened(inputs)))


# Types, and layouts that are not contiguous, differ in the loads and stores alone.
@pytest.mark.parametrize("name", ["abs", "conjugated", "fill a column", "mul a number"])
def test_doubles(name: str, device: torch.device) -> None:
    inputs = inputs_of(torch.complex128)
    ours = [tensor.to(device) for tensor in inputs]
    results = on_device(lambda: CALLS[name](*ours))
    assert_near(results, CALLS[name](*inputs), CALLS[name](*inputs))


ONE_LAUNCH = (
    *("abs", "add", "add a number", "add a number to reals", "add a product", "add reals", "angle", "complex"),
    *("conj_physical", "conjugated", "converted", "div", "div by reals", "mean of rows", "mul"),
    *("mul a row", "mul reals", "neg", "polar", "reciprocal", "sgn", "sum of rows"),
)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_a_call_is_one_launch(device: torch.device, tmp_path: Path) -> None:
    x, y, r = (tensor.to(device) for tensor in inputs_of(torch.complex64))
    truth = r > 1
    calls = {name: functools.partial(CALLS[name], x, y, r) for name in ONE_LAUNCH}
    calls["add_"] = lambda: x.add_(y)
    calls["copy_"] = lambda: x.copy_(y.conj())
    calls["masked_fill"] = lambda: x.masked_fill_(truth, 2j)
    calls["mul_"] = lambda: x.mul_(y)
    calls["where"] = lambda: torch.where(truth, x, y)
    for call in calls.values():
        call()  # the plan is there from here on
    launches = {name: kernels(call, device, tmp_path) for name, call in calls.items()}
    if not any(launches.values()):
        pytest.skip("capability: times of work, without which profiles show no kernels")
    assert {name: len(launched) for name, launched in launches.items() if len(launched) != 1} == {}, launches


GRADIENTS: dict[str, Function] = {
    "abs": lambda x, y, r: x.abs(),
    "angle": lambda x, y, r: x.angle(),
    "complex": lambda x, y, r: torch.complex(r, r * r) * x,
    "div": lambda x, y, r: x / y / r,
    "mul": lambda x, y, r: x * y.conj() * r,
    "mean": lambda x, y, r: (x * 2j).mean(1),
    "parts": lambda x, y, r: x.real * y.imag - torch.view_as_real(x)[..., 0],
    "polar": lambda x, y, r: torch.polar(r, r) * x,
    "sgn": lambda x, y, r: x.sgn() + y,
    "sum": lambda x, y, r: (x - 1j * y).sum() + r.sum(),
    "view_as_complex": lambda x, y, r: torch.view_as_complex(torch.stack((r, r * r), -1)) * y,
    "where": lambda x, y, r: torch.where(r > 1, x, y * r),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, device: torch.device) -> None:
    def gradients(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        result = GRADIENTS[name](*leaves)
        grads = torch.autograd.grad(result, leaves, torch.ones_like(result), allow_unused=True)
        return [grad for grad in grads if grad is not None]

    inputs = inputs_of(torch.complex64)
    grads = on_device(lambda: gradients([tensor.to(device) for tensor in inputs]))
    for result, wanted in zip(grads, gradients(inputs), strict=True):
        torch.testing.assert_close(result.cpu(), wanted)


@pytest.mark.parametrize(("draw", "mean", "variance"), [(torch.rand, 0.5, 1 / 12), (torch.randn, 0.0, 0.5)])
def test_draws(draw: Callable[..., torch.Tensor], mean: float, variance: float, device: torch.device) -> None:
    torch.manual_seed(5)
    drawn = torch.view_as_real(on_device(lambda: draw(60000, dtype=torch.complex64, device=device)).cpu())
    torch.testing.assert_close(drawn.mean(0), torch.full((2,), mean), atol=0.015, rtol=0)
    torch.testing.assert_close(drawn.T.cov(), torch.eye(2) * variance, atol=0.015, rtol=0)


def pairs_of(*numbers: float) -> torch.Tensor:
    return torch.tensor([complex(*pair) for pair in itertools.product(numbers, repeat=2)], dtype=torch.complex64)


def test_special_values(device: torch.device) -> None:
    """Infinities and NaNs are those of the CPU, except of sums."""
    x = pairs_of(0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan)
    column, ours = x.unsqueeze(1), x.to(device)
    for function in (torch.abs, torch.angle, torch.neg, torch.conj_physical, torch.isnan):
        torch.testing.assert_close(function(ours).cpu(), function(x), equal_nan=True, atol=0, rtol=1e-6)
    for binary in (torch.eq, torch.ne):
        assert torch.equal(binary(ours, ours.unsqueeze(1)).cpu(), binary(x, column))
    # The parts one by one: assert_close takes a complex number with a NaN as NaN.
    product = torch.view_as_real((ours * ours.unsqueeze(1)).cpu())
    torch.testing.assert_close(product, torch.view_as_real(x * column), equal_nan=True)
    # By parts. The CPU's kernel multiplies an operand by alpha, 1, which makes NaN of infinity.
    sums = torch.view_as_real((ours + ours.unsqueeze(1)).cpu())
    torch.testing.assert_close(sums, torch.view_as_real(x) + torch.view_as_real(column), equal_nan=True)


def test_nothing_overflows_in_between(device: torch.device) -> None:
    x = pairs_of(1e38, -1e30, 1e-18, 2e-38)
    ours, wide = x.to(device), x.to(torch.complex128)
    torch.testing.assert_close(ours.abs().cpu(), wide.abs().float(), atol=0, rtol=1e-6)
    torch.testing.assert_close((ours / ours).cpu(), torch.ones_like(x), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close((ours / (ours * 0.25)).cpu(), torch.full_like(x, 4), atol=1e-5, rtol=1e-6)


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "aten::linalg_inv_ex": lambda x: torch.linalg.inv_ex(x[:, :3]),
    "aten::_logcumsumexp": lambda x: x.logcumsumexp(0),
    "aten::linalg_qr": lambda x: torch.linalg.qr(x),
}


@pytest.mark.usefixtures("nothing_on_the_cpu")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, device: torch.device) -> None:
    x = inputs_of(torch.complex64)[0].to(device)
    with pytest.raises(
        torch_outboard.NotSupportedError, match=f"{name} has no kernel .* no formula for complex numbers"
    ):
        REFUSED[name](x)
    with pytest.raises(RuntimeError, match="not implemented for|not supported for complex"):
        x < x  # noqa: B015  as the CPU's kernel refuses it
