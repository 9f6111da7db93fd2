# SPDX-License-Identifier: BSD-3-Clause
"""Complex numbers as pairs of reals, and the arithmetic from which other formulas are built."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

__all__ = ["Pair", "divide", "multiply", "pair_of", "real_of", "reciprocal", "tensors_of"]


class Pair(NamedTuple):
    """The real and the imaginary parts of a complex tensor, or of a number."""

    re: Any
    im: Any


def real_of(dtype: torch.dtype) -> torch.dtype:
    """Return the type of a complex type's parts; other types are returned unchanged."""
    return dtype.to_real() if dtype.is_complex else dtype


def pair_of(value: Any, kind: torch.dtype) -> Pair:
    """Return a tensor or a number, complex or real, as a pair in the given real type."""
    if isinstance(value, Pair):
        return Pair(*(part.to(kind) for part in value))
    if isinstance(value, torch.Tensor):
        return Pair(value.to(kind), torch.zeros_like(value, dtype=kind))
    number = complex(value)
    return Pair(number.real, number.imag)


def tensors_of(numbers: Pair, like: Any) -> Pair:
    """Convert a pair of numbers to a pair of tensors."""
    if isinstance(numbers.re, torch.Tensor):
        return numbers
    part = like.re if isinstance(like, Pair) else like
    return Pair(*(torch.full((), number, dtype=part.dtype, device=part.device) for number in numbers))


def multiply(kind: torch.dtype, self: Any, other: Any) -> Pair:
    x, y = pair_of(self, kind), pair_of(other, kind)
    return Pair(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re)


def divide(kind: torch.dtype, self: Any, other: Any) -> Pair:
    """Divide as c10::complex does: by the larger part of the divisor first, to avoid overflow in squares."""
    x, y = pair_of(self, kind), tensors_of(pair_of(other, kind), self)
    is_real = y.re.abs() >= y.im.abs()
    large, small = torch.where(is_real, y.re, y.im), torch.where(is_real, y.im, y.re)
    ratio = small / large
    scale = 1 / (large + small * ratio)
    a, b = torch.where(is_real, x.re, x.im), torch.where(is_real, x.im, x.re)
    re, im = (a + b * ratio) * scale, torch.where(is_real, b - a * ratio, a * ratio - b) * scale
    is_zero = (y.re == 0) & (y.im == 0)
    size = large.abs()
    return Pair(torch.where(is_zero, x.re / size, re), torch.where(is_zero, x.im / size, im))


def reciprocal(kind: torch.dtype, self: Pair) -> Pair:
    return divide(kind, Pair(torch.ones_like(self.re), torch.zeros_like(self.re)), self)
