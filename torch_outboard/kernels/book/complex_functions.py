# SPDX-License-Identifier: BSD-3-Clause
"""Functions of complex numbers, as formulas over pairs of reals.

The inverse functions follow W. Kahan ("Branch cuts for complex elementary functions", 1987), with C's branch cuts and
signs of zero. torch's kernels use C's functions, or shorter formulas that lose more digits.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_outboard.kernels.book.pair import Pair, divide, multiply, pair_of, reciprocal, tensors_of
from torch_outboard.kernels.book.row import Function

__all__ = ["FORMULAS"]


def _multiply_by_i(self: Pair) -> Pair:
    return Pair(-self.im, self.re)


def _divide_by_i(self: Pair) -> Pair:
    return Pair(self.im, -self.re)


def _rotate_argument(formula: Function) -> Function:
    """Return the formula of f(i z) / i from the formula of f, as in sin(z) = sinh(i z) / i."""

    def rotated(kind: torch.dtype, self: Pair) -> Pair:
        return _divide_by_i(formula(kind, _multiply_by_i(self)))

    return rotated


# Exponentials.


def _exp(kind: torch.dtype, self: Pair) -> Pair:
    """Return a real number for a real argument, even if the exponential is infinite."""
    return _polar(self.re.exp(), self.im)


def _polar(size: torch.Tensor, angle: torch.Tensor) -> Pair:
    re, im = (torch.where(size == 0, size, size * part) for part in (angle.cos(), angle.sin()))
    return Pair(re, torch.where(angle == 0, angle, im))


def _exp2(kind: torch.dtype, self: Pair) -> Pair:
    return _polar(self.re.exp2(), self.im * math.log(2))


def _expm1(kind: torch.dtype, self: Pair) -> Pair:
    half = (self.im / 2).sin()
    re = self.re.expm1() * self.im.cos() - 2 * half * half
    return Pair(re, torch.where(self.im == 0, self.im, self.re.exp() * self.im.sin()))


def _sigmoid(kind: torch.dtype, self: Pair) -> Pair:
    """Divide by a number whose absolute value is about 1 or more, so that no exponential overflows."""
    is_positive = self.re >= 0
    small = _polar((-self.re.abs()).exp(), torch.where(is_positive, -self.im, self.im))
    above = Pair(*(torch.where(is_positive, limit, part) for limit, part in zip((1.0, 0.0), small, strict=True)))
    return divide(kind, above, Pair(1 + small.re, small.im))


# Logarithms.


def _log(kind: torch.dtype, self: Pair) -> Pair:
    return Pair(_log_abs(self.re, self.im), torch.atan2(self.im, self.re))


def _log_abs(re: torch.Tensor, im: torch.Tensor) -> torch.Tensor:
    """Return log |z|; near |z| = 1, compute it from the difference of |z| from 1."""
    size = torch.hypot(re, im)
    large, small = torch.maximum(re.abs(), im.abs()), torch.minimum(re.abs(), im.abs())
    near = ((large - 1) * (large + 1) + small * small).log1p() / 2
    return torch.where((size > 0.5) & (size < 2), near, size.log())


def _log_base(base: float) -> Function:
    def formula(kind: torch.dtype, self: Pair) -> Pair:
        return Pair(*(part / math.log(base) for part in _log(kind, self)))

    return formula


def _log1p(kind: torch.dtype, self: Pair) -> Pair:
    """Return log(1 + z)."""
    near = (self.re * (2 + self.re) + self.im * self.im).log1p() / 2
    is_near = torch.hypot(self.re, self.im) < 0.5
    return Pair(
        torch.where(is_near, near, _log_abs(1 + self.re, self.im)),
        torch.atan2(self.im, 1 + self.re),
    )


# Powers.


def _sqrt(kind: torch.dtype, self: Pair) -> Pair:
    re, im = self
    half = (torch.hypot(re, im) / 2 + re.abs() / 2).sqrt()
    quotient = torch.where(half == 0, im.abs(), im.abs() / (2 * half))
    is_infinite = im.isinf()
    is_right = re >= 0
    root, rest = torch.where(is_right, half, quotient), torch.where(is_right, quotient, half)
    return Pair(torch.where(is_infinite, math.inf, root), torch.copysign(torch.where(is_infinite, math.inf, rest), im))


def _rsqrt(kind: torch.dtype, self: Pair) -> Pair:
    return reciprocal(kind, _sqrt(kind, self))


# torch's kernels compute these exponents by multiplications and roots.
_SPECIAL_EXPONENTS: dict[complex, Function] = {
    -2: lambda kind, self: reciprocal(kind, multiply(kind, self, self)),
    -1: reciprocal,
    -0.5: _rsqrt,
    0.5: _sqrt,
    1: lambda kind, self: self,
    2: lambda kind, self: multiply(kind, self, self),
    3: lambda kind, self: multiply(kind, multiply(kind, self, self), self),
}


def _pow(kind: torch.dtype, self: Any, exponent: Any) -> Any:
    """Return exp(exponent log z), or 0 for a base of 0."""
    if isinstance(exponent, (int, float, complex)) and exponent in _SPECIAL_EXPONENTS:
        return _SPECIAL_EXPONENTS[exponent](kind, self)
    base = tensors_of(pair_of(self, kind), exponent)
    power = tensors_of(pair_of(exponent, kind), self)
    result = _exp(kind, multiply(kind, power, _log(kind, base)))
    is_zero = (base.re == 0) & (base.im == 0)
    return Pair(*(torch.where(is_zero, 0, part) for part in result))


# Circular and hyperbolic functions. Zero times an infinite factor is zero here.


def _product(size: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return torch.where(factor == 0, factor, size * factor)


def _sinh(kind: torch.dtype, self: Pair) -> Pair:
    re, im = self
    return Pair(re.sinh() * im.cos(), _product(re.cosh(), im.sin()))


def _cosh(kind: torch.dtype, self: Pair) -> Pair:
    re, im = self
    return Pair(re.cosh() * im.cos(), _product(re.sinh(), im.sin()))


def _tanh(kind: torch.dtype, self: Pair) -> Pair:
    re, im = self
    tangent, sine = im.tan(), re.sinh()
    size = 1 + tangent * tangent
    below = 1 + size * sine * sine
    # Beyond this bound, the real part is 1 in the type, and the square of the sine may overflow.
    is_far = re.abs() > math.asinh(torch.finfo(kind).max) / 4
    near = size * (1 + sine * sine).sqrt() * sine / below
    far = 4 * im.sin() * im.cos() * (-2 * re.abs()).exp()
    return Pair(
        torch.where(is_far, torch.copysign(torch.ones_like(re), re), near),
        torch.where(is_far, far, tangent / below),
    )


def _cos(kind: torch.dtype, self: Pair) -> Pair:
    return _cosh(kind, _multiply_by_i(self))


def _sqrt_1_minus_and_plus(kind: torch.dtype, self: Pair) -> tuple[Pair, Pair]:
    """Return the square roots of 1 - z and of 1 + z."""
    return _sqrt(kind, Pair(1 - self.re, -self.im)), _sqrt(kind, Pair(1 + self.re, self.im))


def _asin(kind: torch.dtype, self: Pair) -> Pair:
    less, more = _sqrt_1_minus_and_plus(kind, self)
    return Pair(
        torch.atan2(self.re, less.re * more.re - less.im * more.im),
        (less.re * more.im - less.im * more.re).asinh(),
    )


def _acos(kind: torch.dtype, self: Pair) -> Pair:
    less, more = _sqrt_1_minus_and_plus(kind, self)
    return Pair(2 * torch.atan2(less.re, more.re), (more.re * less.im - more.im * less.re).asinh())


def _acosh(kind: torch.dtype, self: Pair) -> Pair:
    less = _sqrt(kind, Pair(self.re - 1, self.im))
    more = _sqrt(kind, Pair(self.re + 1, self.im))
    return Pair((less.re * more.re + less.im * more.im).asinh(), 2 * torch.atan2(less.im, more.re))


def _atanh(kind: torch.dtype, self: Pair) -> Pair:
    re, im = self
    x, y = re.abs(), im.abs()
    far = math.sqrt(torch.finfo(kind).max) / 4
    is_far = (x > far) | (y > far)
    size = (4 * x / ((1 - x) * (1 - x) + y * y)).log1p() / 4
    # Close to 1, the square of y may underflow to 0.
    beside = (torch.hypot(torch.full_like(y, 2), y) / y).log() / 2
    size = torch.where((x == 1) & (y < 0.5), beside, size)
    angle = torch.atan2(2 * im, (1 - x) * (1 + x) - y * y) / 2
    rest = reciprocal(kind, Pair(x, y)).re
    return Pair(
        torch.copysign(torch.where(is_far, rest, size), re),
        torch.where(is_far, torch.copysign(torch.full_like(im, math.pi / 2), im), angle),
    )


FORMULAS: dict[str, Function] = {
    "aten::acos": _acos,
    "aten::acosh": _acosh,
    "aten::asin": _asin,
    "aten::asinh": _rotate_argument(_asin),
    "aten::atan": _rotate_argument(_atanh),
    "aten::atanh": _atanh,
    "aten::cos": _cos,
    "aten::cosh": _cosh,
    "aten::exp": _exp,
    "aten::exp2": _exp2,
    "aten::expm1": _expm1,
    "aten::log": _log,
    "aten::log10": _log_base(10),
    "aten::log1p": _log1p,
    "aten::log2": _log_base(2),
    "aten::pow": _pow,
    "aten::reciprocal": reciprocal,
    "aten::rsqrt": _rsqrt,
    "aten::sigmoid": _sigmoid,
    "aten::sin": _rotate_argument(_sinh),
    "aten::sinh": _sinh,
    "aten::sqrt": _sqrt,
    "aten::tan": _rotate_argument(_tanh),
    "aten::tanh": _tanh,
}
