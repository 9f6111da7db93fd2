# SPDX-License-Identifier: BSD-3-Clause
"""Functions, products and writes of complex numbers in generated kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from .test_complex import on_device, pairs_of

FUNCTIONS = (
    *(
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cos",
        "cosh",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log10",
        "log1p",
    ),
    *("log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, device: torch.device) -> None:
    """Errors are relative to the value. Near the poles of sigmoid they are relative to the slope, if that is larger."""
    function = getattr(torch, name)
    x = torch.randn(5000, dtype=torch.complex64) * 2
    result, exact = on_device(lambda: function(x.to(device))).cpu(), function(x.to(torch.complex128))
    size = exact.abs() * ((1 - exact).abs().clamp(min=1) if name == "sigmoid" else 1)
    assert ((result - exact).abs() / size).max() < 2e-6


@pytest.mark.parametrize("name", FUNCTIONS)
def test_cuts_and_large_numbers(name: str, device: torch.device) -> None:
    """Both sides of a branch cut, distinguished by the sign of a zero; numbers whose squares are 0 or infinite."""
    function = getattr(torch, name)
    x = pairs_of(0.0, -0.0, 0.3, -0.3, 1.0, -1.0, 2.0, -2.0, 30.0, -30.0, 1e-20, 1e30, -1e30)
    result = torch.view_as_real(function(x.to(device)).cpu()).double()
    # Where single precision overflows, either the exact value or the CPU's kernel's.
    exact = torch.view_as_real(function(x.to(torch.complex128)).to(torch.complex64)).double()
    usual = torch.view_as_real(function(x)).double()
    is_right = [torch.isclose(result, wanted, rtol=1e-5, atol=1e-37, equal_nan=True) for wanted in (exact, usual)]
    # What overflows in part is infinity or NaN in the other part, by the order of products.
    is_right.append(~torch.isfinite(exact).all(-1, keepdim=True).expand_as(exact))
    wrong = ~torch.stack(is_right).any(0).all(-1)
    assert not wrong.any(), list(zip(x[wrong], result[wrong], exact[wrong], usual[wrong], strict=True))[:5]


POWERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "of each": lambda x, y: x.pow(y),
    "of nothing": lambda x, y: torch.zeros_like(x).pow(y.abs().to(x.dtype)),
    "of a number": lambda x, y: (1.5 - 1j) ** y,
    "of two": lambda x, y: torch.pow(2, y),
    "to a number": lambda x, y: x ** (0.7 + 0.2j),
    "to a real": lambda x, y: x**1.3,
    "to a root": lambda x, y: x**0.5 + x**-0.5,
    "to whole numbers": lambda x, y: x**2 + x**-1 - x**3 + x**0 + x**1 + x**5,
    "to reals": lambda x, y: x.pow(y.real),
}


@pytest.mark.parametrize("name", POWERS)
def test_powers(name: str, device: torch.device) -> None:
    x, y = (torch.randn(50, dtype=torch.complex64) for _ in range(2))
    result = on_device(lambda: POWERS[name](x.to(device), y.to(device))).cpu()
    exact = POWERS[name](x.to(torch.complex128), y.to(torch.complex128))
    torch.testing.assert_close(result, exact.to(torch.complex64), rtol=2e-5, atol=1e-5)


Matrices = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
PRODUCTS: dict[str, Matrices] = {
    "addmm": lambda a, b, c: torch.addmm(c, a, b, beta=0.5 - 1j, alpha=2j),
    "addmm to nothing": lambda a, b, c: torch.addmm(c * math.nan, a, b, beta=0),
    "addmv": lambda a, b, c: torch.addmv(c[:, 0], a, b[:, 1], alpha=1 - 2j),
    "baddbmm": lambda a, b, c: torch.baddbmm(
        c.expand(3, 5, 4), a.expand(3, 5, 7), torch.stack((b, -b, b * 1j)), beta=2
    ),
    "bmm": lambda a, b, c: torch.stack((a, a * 1j)) @ torch.stack((b, b.conj())),
    "conjugated": lambda a, b, c: a.conj() @ b + a @ b.conj() - a.conj() @ b.conj(),
    "conjugated and transposed": lambda a, b, c: b.mH @ a.mH,
    "cumprod": lambda a, b, c: a[:4].cumprod(1) * b.cumprod(0).mT,
    "dot": lambda a, b, c: torch.dot(a[0], b[:, 0]) + torch.vdot(a[1], b[:, 1]),
    "einsum": lambda a, b, c: torch.einsum("ij,jk,ik->i", a, b, c),
    "mm": lambda a, b, c: a @ b,
    "mm of nothing": lambda a, b, c: a[:, :0] @ b[:0],
    "prod": lambda a, b, c: a.prod(1) * b.prod() + b.prod(0, keepdim=True).sum() + a[:, :0].prod(1),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, device: torch.device) -> None:
    def of(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        result = PRODUCTS[name](*leaves)
        grads = torch.autograd.grad(result, leaves, torch.ones_like(result), allow_unused=True)
        return [result, *(grad for grad in grads if grad is not None)]

    inputs = [torch.randn(*size, dtype=torch.complex64) for size in ((5, 7), (7, 4), (5, 4))]
    results = on_device(lambda: of([tensor.to(device) for tensor in inputs]))
    for result, exact in zip(results, of([tensor.to(torch.complex128) for tensor in inputs]), strict=True):
        torch.testing.assert_close(result.cpu(), exact.to(torch.complex64), rtol=2e-5, atol=2e-5, equal_nan=True)


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "added by index": lambda x, y, i: x.index_add(0, i, y, alpha=2),
    "added to places": lambda x, y, i: x.scatter_add(0, i[:, None].expand_as(y), y),
    "by a mask": lambda x, y, i: x.masked_scatter(x.real > 0, y),
    "by index": lambda x, y, i: x.index_copy(0, i.unique(), y[: i.unique().numel()]),
    "put": lambda x, y, i: x.index_put((i,), y, accumulate=True),
    "selected": lambda x, y, i: x[x.real > 0],
    "to a mask": lambda x, y, i: x.index_put((x.real > 0,), y[0, 0]),
    "which": lambda x, y, i: (x * (x.real > 0)).nonzero(),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str, device: torch.device) -> None:
    x, y = torch.randn(6, 4, dtype=torch.complex64), torch.randn(9, 4, dtype=torch.complex64)
    i = torch.randint(6, (9,))
    result = on_device(lambda: WRITES[name](*(tensor.to(device) for tensor in (x, y, i))))
    torch.testing.assert_close(result.cpu(), WRITES[name](x, y, i))


def test_no_number_is_of_two_values(device: torch.device) -> None:
    """Of values that are written to the same place one is there, with both parts."""
    values = torch.arange(4000.0)
    y = torch.complex(values, values).to(device)
    place = torch.randint(50, (4000,), device=device)
    for written in (
        on_device(lambda: torch.zeros(50, dtype=torch.complex64, device=device).index_put((place,), y)),
        on_device(lambda: torch.zeros(50, dtype=torch.complex64, device=device).scatter(0, place, y)),
    ):
        assert torch.equal(written.real.cpu(), written.imag.cpu())


def test_equal(device: torch.device) -> None:
    x = torch.randn(7, dtype=torch.complex64)
    ours = x.to(device)
    assert on_device(lambda: torch.equal(ours, x.to(device)))
    assert not torch.equal(ours, x.conj().to(device)) and not torch.equal(ours, ours[:3])
    assert torch.equal((ours * 0).any().cpu(), torch.tensor(False)) and bool(ours.imag.to(torch.complex64).any())


def test_gradients_of_functions(device: torch.device) -> None:
    inputs = torch.rand(40, dtype=torch.complex64) + 0.2

    def of(x: torch.Tensor) -> list[torch.Tensor]:
        leaf = x.clone().requires_grad_()
        names = ("acos", "asinh", "atanh", "exp", "log", "rsqrt", "sigmoid", "sqrt", "tan", "tanh")
        results = [getattr(torch, name)(leaf) for name in names] + [leaf**1.5, leaf**leaf, leaf.cumprod(0)]
        return list(itertools.chain(*(torch.autograd.grad(result, leaf, result.detach()) for result in results)))

    grads = on_device(lambda: of(inputs.to(device)))
    for result, exact in zip(grads, of(inputs.to(torch.complex128)), strict=True):
        torch.testing.assert_close(result.cpu(), exact.to(torch.complex64), rtol=1e-4, atol=1e-4)
