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


def _times_i(self: Pair) -> Pair:
    return Pair(-self.im, self.re)


def _by_i(self: Pair) -> Pair:
    return Pair(self.im, -self.re)


def _of_times_i(formula: Function) -> Function:
    """Return the formula of f(i z) / i from the formula of f, as in sin(z) = sinh(i z) / i."""

    def turned(kind: torch.dtype, self: Pair) -> Pair:
        return _by_i(formula(kind, _times_i(self)))

    return turned


# Exponentials.


def _exponential(kind: torch.dtype, self: Pair) -> Pair:
    """Return a real number for a real argument, even if the exponential is infinite."""
    return _turned(self.re.exp(), self.im)


def _turned(size: torch.Tensor, angle: torch.Tensor) -> Pair:
    re, im = (torch.where(size == 0, size, size * part) for part in (angle.cos(), angle.sin()))
    return Pair(re, torch.where(angle == 0, angle, im))


def _exponential_of_2(kind: torch.dtype, self: Pair) -> Pair:
    return _turned(self.re.exp2(), self.im * math.log(2))


def _exponential_less_1(kind: torch.dtype, self: Pair) -> Pair:
    half = (self.im / 2).sin()
    re = self.re.expm1() * self.im.cos() - 2 * half * half
    return Pair(re, torch.where(self.im == 0, self.im, self.re.exp() * self.im.sin()))


def _sigmoid(kind: torch.dtype, self: Pair) -> Pair:
    """Divide by a number whose absolute value is about 1 or more, so that no exponential overflows."""
    is_positive = self.re >= 0
    small = _turned((-self.re.abs()).exp(), torch.where(is_positive, -self.im, self.im))
    above = Pair(*(torch.where(is_positive, limit, part) for limit, part in zip((1.0, 0.0), small, strict=True)))
    return divide(kind, above, Pair(1 + small.re, small.im))


# Logarithms.


def _logarithm(kind: torch.dtype, self: Pair) -> Pair:
    return Pair(_log_of_size(self.re, self.im), torch.atan2(self.im, self.re))


def _log_of_size(re: torch.Tensor, im: torch.Tensor) -> torch.Tensor:
    """Return log |z|; near |z| = 1, compute it from the difference of |z| from 1."""
    size = torch.hypot(re, im)
    large, small = torch.maximum(re.abs(), im.abs()), torch.minimum(re.abs(), im.abs())
    near = ((large - 1) * (large + 1) + small * small).log1p() / 2
    return torch.where((size > 0.5) & (size < 2), near, size.log())


def _logarithm_by(base: float) -> Function:
    def formula(kind: torch.dtype, self: Pair) -> Pair:
        return Pair(*(part / math.log(base) for part in _logarithm(kind, self)))

    return formula


def _logarithm_of_1_more(kind: torch.dtype, self: Pair) -> Pair:
    """Return log(1 + z)."""
    near = (self.re * (2 + self.re) + self.im * self.im).log1p() / 2
    is_near = torch.hypot(self.re, self.im) < 0.5
    return Pair(
        torch.where(is_near, near, _log_of_size(1 + self.re, self.im)),
        torch.atan2(self.im, 1 + self.re),
    )


# Powers.


def _square_root(kind: torch.dtype, self: Pair) -> Pair:
    re, im = self
    half = (torch.hypot(re, im) / 2 + re.abs() / 2).sqrt()
    quotient = torch.where(half == 0, im.abs(), im.abs() / (2 * half))
    is_infinite = im.isinf()
    is_right = re >= 0
    root, rest = torch.where(is_right, half, quotient), torch.where(is_right, quotient, half)
    return Pair(torch.where(is_infinite, math.inf, root), torch.copysign(torch.where(is_infinite, math.inf, rest), im))


def _by_square_root(kind: torch.dtype, self: Pair) -> Pair:
    return reciprocal(kind, _square_root(kind, self))


# torch's kernels compute these exponents by multiplications and roots.
_OF_EXPONENT: dict[complex, Function] = {
    -2: lambda kind, self: reciprocal(kind, multiply(kind, self, self)),
    -1: reciprocal,
    -0.5: _by_square_root,
    0.5: _square_root,
    1: lambda kind, self: self,
    2: lambda kind, self: multiply(kind, self, self),
    3: lambda kind, self: multiply(kind, multiply(kind, self, self), self),
}


def _power(kind: torch.dtype, self: Any, exponent: Any) -> Any:
    """Return exp(exponent log z), or 0 for a base of 0."""
    if isinstance(exponent, (int, float, complex)) and exponent in _OF_EXPONENT:
        return _OF_EXPONENT[exponent](kind, self)
    base = tensors_of(pair_of(self, kind), exponent)
    power = tensors_of(pair_of(exponent, kind), self)
    result = _exponential(kind, multiply(kind, power, _logarithm(kind, base)))
    is_zero = (base.re == 0) & (base.im == 0)
    return Pair(*(torch.where(is_zero, 0, part) for part in result))


# Circular and hyperbolic functions. Zero times an infinite factor is zero here.


def _product(size: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return torch.where(factor == 0, factor, size * factor)


def _hyperbolic_sine(kind: torch.dtype, self: Pair) -> Pair:
    re, im = self
    return Pair(re.sinh() * im.cos(), _product(re.cosh(), im.sin()))


def _hyperbolic_cosine(kind: torch.dtype, self: Pair) -> Pair:
    re, im = self
    return Pair(re.cosh() * im.cos(), _product(re.sinh(), im.sin()))


def _hyperbolic_tangent(kind: torch.dtype, self: Pair) -> Pair:
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


def _cosine(kind: torch.dtype, self: Pair) -> Pair:
    return _hyperbolic_cosine(kind, _times_i(self))


def _roots_around(kind: torch.dtype, self: Pair) -> tuple[Pair, Pair]:
    """Return the square roots of 1 - z and of 1 + z."""
    return _square_root(kind, Pair(1 - self.re, -self.im)), _square_root(kind, Pair(1 + self.re, self.im))


def _inverse_sine(kind: torch.dtype, self: Pair) -> Pair:
    less, more = _roots_around(kind, self)
    return Pair(
        torch.atan2(self.re, less.re * more.re - less.im * more.im),
        (less.re * more.im - less.im * more.re).asinh(),
    )


def _inverse_cosine(kind: torch.dtype, self: Pair) -> Pair:
    less, more = _roots_around(kind, self)
    return Pair(2 * torch.atan2(less.re, more.re), (more.re * less.im - more.im * less.re).asinh())


def _inverse_hyperbolic_cosine(kind: torch.dtype, self: Pair) -> Pair:
    less = _square_root(kind, Pair(self.re - 1, self.im))
    more = _square_root(kind, Pair(self.re + 1, self.im))
    return Pair((less.re * more.re + less.im * more.im).asinh(), 2 * torch.atan2(less.im, more.re))


def _inverse_hyperbolic_tangent(kind: torch.dtype, self: Pair) -> Pair:
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
    "aten::acos": _inverse_cosine,
    "aten::acosh": _inverse_hyperbolic_cosine,
    "aten::asin": _inverse_sine,
    "aten::asinh": _of_times_i(_inverse_sine),
    "aten::atan": _of_times_i(_inverse_hyperbolic_tangent),
    "aten::atanh": _inverse_hyperbolic_tangent,
    "aten::cos": _cosine,
    "aten::cosh": _hyperbolic_cosine,
    "aten::exp": _exponential,
    "aten::exp2": _exponential_of_2,
    "aten::expm1": _exponential_less_1,
    "aten::log": _logarithm,
    "aten::log10": _logarithm_by(10),
    "aten::log1p": _logarithm_of_1_more,
    "aten::log2": _logarithm_by(2),
    "aten::pow": _power,
    "aten::reciprocal": reciprocal,
    "aten::rsqrt": _by_square_root,
    "aten::sigmoid": _sigmoid,
    "aten::sin": _of_times_i(_hyperbolic_sine),
    "aten::sinh": _hyperbolic_sine,
    "aten::sqrt": _square_root,
    "aten::tan": _of_times_i(_hyperbolic_tangent),
    "aten::tanh": _hyperbolic_tangent,
}
