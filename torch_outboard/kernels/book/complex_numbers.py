# SPDX-License-Identifier: BSD-3-Clause
"""Complex numbers as pairs of reals: the formulas of operators whose tensors are complex.

Inductor lowers no complex numbers. A graph with complex values is therefore written again with pairs, an operator at a
time (kernels/plans/pairs.py). A formula takes `kind`, the type of reals in which the operator computes, and the
operator's arguments with a Pair in place of each complex tensor. It returns a tensor, a Pair, or a list of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torch_outboard.kernels.book.row import Function

__all__ = ["Pair", "are_apart", "formula_of", "leave_to_formulas", "pair_of", "real_of"]


class Pair(NamedTuple):
    """The real and the imaginary parts of a complex tensor, or of a number."""

    re: Any
    im: Any


def real_of(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the parts of complex numbers; other types as they are."""
    return dtype.to_real() if dtype.is_complex else dtype


def pair_of(value: Any, kind: torch.dtype) -> Pair:
    """Return a tensor or a number, complex or not, as a pair of a type."""
    if isinstance(value, Pair):
        return Pair(*(one.to(kind) for one in value))
    if isinstance(value, torch.Tensor):
        return Pair(value.to(kind), torch.zeros_like(value, dtype=kind))
    number = complex(value)
    return Pair(number.real, number.imag)


# Arithmetic. torch's kernels convert a real operand to a complex number, whose imaginary part 0
# takes part: it makes NaN of infinity in a product.


def _add(kind: torch.dtype, self: Any, other: Any, *, alpha: Any = 1) -> Pair:
    x, y = pair_of(self, kind), pair_of(other, kind)
    if alpha != 1:
        y = _multiply(kind, y, alpha)
    return Pair(x.re + y.re, x.im + y.im)


def _subtract(kind: torch.dtype, self: Any, other: Any, *, alpha: Any = 1) -> Pair:
    x, y = pair_of(self, kind), pair_of(other, kind)
    if alpha != 1:
        y = _multiply(kind, y, alpha)
    return Pair(x.re - y.re, x.im - y.im)


def _add_product(kind: torch.dtype, self: Any, first: Any, second: Any, *, value: Any = 1) -> Pair:
    product = _multiply(kind, first, second)
    return _add(kind, self, product, alpha=value)


def _add_quotient(kind: torch.dtype, self: Any, first: Any, second: Any, *, value: Any = 1) -> Pair:
    return _add(kind, self, _divide(kind, first, second), alpha=value)


def _multiply(kind: torch.dtype, self: Any, other: Any) -> Pair:
    x, y = pair_of(self, kind), pair_of(other, kind)
    return Pair(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re)


def _divide(kind: torch.dtype, self: Any, other: Any) -> Pair:
    """Divide as c10::complex does: by the larger part of the divisor first, so that no square overflows."""
    x, y = pair_of(self, kind), _tensors(pair_of(other, kind), self)
    is_real = y.re.abs() >= y.im.abs()
    large, small = torch.where(is_real, y.re, y.im), torch.where(is_real, y.im, y.re)
    ratio = small / large
    scale = 1 / (large + small * ratio)
    a, b = torch.where(is_real, x.re, x.im), torch.where(is_real, x.im, x.re)
    re, im = (a + b * ratio) * scale, torch.where(is_real, b - a * ratio, a * ratio - b) * scale
    is_zero = (y.re == 0) & (y.im == 0)
    size = large.abs()
    return Pair(torch.where(is_zero, x.re / size, re), torch.where(is_zero, x.im / size, im))


def _tensors(given: Pair, like: Any) -> Pair:
    """Return a pair of tensors in place of a pair of numbers."""
    if isinstance(given.re, torch.Tensor):
        return given
    part = like.re if isinstance(like, Pair) else like
    return Pair(*(torch.full((), one, dtype=part.dtype, device=part.device) for one in given))


def _reciprocal(kind: torch.dtype, self: Pair) -> Pair:
    return _divide(kind, Pair(torch.ones_like(self.re), torch.zeros_like(self.re)), self)


def _power(kind: torch.dtype, self: Pair, exponent: Any) -> Any:
    """Raise to the exponents for which torch's kernels multiply."""
    if exponent not in (-2, -1, 2, 3):
        return NotImplemented
    result = self
    for _ in range(abs(int(exponent)) - 1):
        result = _multiply(kind, result, self)
    return result if exponent > 0 else _reciprocal(kind, result)


def _conjugate(kind: torch.dtype, self: Pair) -> Pair:
    return Pair(self.re, -self.im)


def _size(kind: torch.dtype, self: Pair) -> torch.Tensor:
    return torch.hypot(self.re, self.im)


def _angle(kind: torch.dtype, self: Pair) -> torch.Tensor:
    return torch.atan2(self.im, self.re)


def _exponential(kind: torch.dtype, self: Pair) -> Pair:
    """Return a real number for a real one, also where the exponential is infinite."""
    size = self.re.exp()
    return Pair(size * self.im.cos(), torch.where(self.im == 0, self.im, size * self.im.sin()))


def _sign(kind: torch.dtype, self: Pair) -> Pair:
    size = torch.hypot(self.re, self.im)
    return Pair(*(torch.where(size == 0, 0, one / size) for one in self))


def _variance(kind: torch.dtype, self: Pair, dim: Any = None, **named: Any) -> Any:
    """Add the variances of the parts."""
    variance = torch.ops.aten.var.correction
    return variance(self.re, dim, **named) + variance(self.im, dim, **named)


def _variance_and_mean(kind: torch.dtype, self: Pair, dim: Any = None, **named: Any) -> Any:
    (first, re), (second, im) = (torch.ops.aten.var_mean.correction(one, dim, **named) for one in self)
    return [first + second, Pair(re, im)]


# Comparisons and choices.


def _equal(kind: torch.dtype, self: Any, other: Any) -> Any:
    x, y = pair_of(self, kind), pair_of(other, kind)
    return (x.re == y.re) & (x.im == y.im)


def _not_equal(kind: torch.dtype, self: Any, other: Any) -> Any:
    x, y = pair_of(self, kind), pair_of(other, kind)
    return (x.re != y.re) | (x.im != y.im)


def _is_nan(kind: torch.dtype, self: Pair) -> Any:
    return self.re.isnan() | self.im.isnan()


def _is_zero(kind: torch.dtype, self: Pair) -> Any:
    return (self.re == 0) & (self.im == 0)


def _logical(operator: Function) -> Function:
    """Return the formula of an operator of truths: numbers that are not 0."""

    def compare(kind: torch.dtype, self: Any, other: Any) -> Any:
        return operator(_not_equal(kind, self, 0), _not_equal(kind, other, 0))

    return compare


def _where(kind: torch.dtype, condition: torch.Tensor, self: Any, other: Any) -> Pair:
    x, y = pair_of(self, kind), pair_of(other, kind)
    return Pair(torch.where(condition, x.re, y.re), torch.where(condition, x.im, y.im))


# From and to reals.


def _complex(kind: torch.dtype, real: torch.Tensor, imag: torch.Tensor) -> Pair:
    return Pair(real, imag)


def _polar(kind: torch.dtype, size: torch.Tensor, angle: torch.Tensor) -> Pair:
    return Pair(size * angle.cos(), size * angle.sin())


def _as_real(kind: torch.dtype, self: Pair) -> torch.Tensor:
    return torch.stack(self, -1)


def _as_complex(kind: torch.dtype, self: torch.Tensor) -> Pair:
    return Pair(self.select(-1, 0), self.select(-1, 1))


def _convert(kind: torch.dtype, self: Any, dtype: torch.dtype) -> Any:
    """Convert from or to complex numbers. A bool says if the number is not 0."""
    if dtype.is_complex:
        return pair_of(self, dtype.to_real())
    return _not_equal(kind, self, 0) if dtype == torch.bool else self.re.to(dtype)


def _copy(kind: torch.dtype, self: Any, source: Any, non_blocking: bool = False) -> Any:
    return pair_of(source, kind) if isinstance(self, Pair) else _convert(kind, source, self.dtype)


def _full(kind: torch.dtype, size: Any, value: Any, **named: Any) -> Pair:
    number, named = complex(value), {**named, "dtype": kind}
    return Pair(torch.full(size, number.real, **named), torch.full(size, number.imag, **named))


def _scalar(kind: torch.dtype, value: Any, **named: Any) -> Pair:
    return _full(kind, (), value, **named)


def _empty(kind: torch.dtype, size: Any, **named: Any) -> Pair:
    return _full(kind, size, 0, **{name: one for name, one in named.items() if name != "memory_format"})


def _fill(kind: torch.dtype, self: Pair, value: Any) -> Pair:
    filling = _tensors(pair_of(value, kind), self)
    return Pair(*(number.expand(one.shape).clone() for one, number in zip(self, filling, strict=True)))


def _pad(kind: torch.dtype, self: Pair, pad: Any, value: Any = 0) -> Pair:
    parts = zip(self, pair_of(value, kind), strict=True)
    return Pair(*(torch.ops.aten.constant_pad_nd.default(one, pad, number) for one, number in parts))


_FORMULAS: dict[str, Function] = {
    "aten::_conj": _conjugate,
    "aten::_conj_physical": _conjugate,
    "aten::abs": _size,
    "aten::add": _add,
    "aten::addcdiv": _add_quotient,
    "aten::addcmul": _add_product,
    "aten::angle": _angle,
    "aten::complex": _complex,
    "aten::conj_physical": _conjugate,
    "aten::constant_pad_nd": _pad,
    "aten::copy": _copy,
    "aten::div": _divide,
    "aten::empty": _empty,
    "aten::eq": _equal,
    "aten::exp": _exponential,
    "aten::fill": _fill,
    "aten::full": _full,
    "aten::isnan": _is_nan,
    "aten::logical_and": _logical(torch.logical_and),
    "aten::logical_not": _is_zero,
    "aten::logical_or": _logical(torch.logical_or),
    "aten::logical_xor": _logical(torch.logical_xor),
    "aten::mul": _multiply,
    "aten::ne": _not_equal,
    "aten::polar": _polar,
    "aten::pow": _power,
    "aten::reciprocal": _reciprocal,
    "aten::scalar_tensor": _scalar,
    "aten::sgn": _sign,
    "aten::sub": _subtract,
    "aten::var": _variance,
    "aten::var_mean": _variance_and_mean,
    "aten::view_as_complex": _as_complex,
    "aten::view_as_real": _as_real,
    "aten::where": _where,
    "prims::convert_element_type": _convert,
}

# Operators that compute the real parts from real parts, and the imaginary ones in the same way.
_APART = frozenset(
    f"aten::{name}"
    for name in (
        *("_unsafe_index", "_unsafe_view", "alias", "cat", "clone", "cumsum", "detach", "diagonal", "expand", "flip"),
        *("gather", "index", "index_select", "lift_fresh", "mean", "neg", "permute", "repeat", "reshape", "roll"),
        *("select", "select_scatter", "slice", "slice_scatter", "split", "split_with_sizes", "squeeze", "stack", "sum"),
        *("t", "transpose", "tril", "triu", "unbind", "unfold", "unsqueeze", "view"),
    )
) | {"prims::rev"}


def _base(operator: torch._ops.OpOverload) -> str:
    """Return "aten::expand" for "aten::expand_copy.default"."""
    return operator._schema.name.removesuffix("_copy")


def formula_of(operator: torch._ops.OpOverload) -> Function | None:
    """Return the formula of an operator of a graph; None if there is none."""
    return _FORMULAS.get(_base(operator))


def are_apart(operator: torch._ops.OpOverload) -> bool:
    """Return True if an operator computes both parts alike, each from the same parts of its tensors."""
    return _base(operator) in _APART


def leave_to_formulas(table: Mapping[Any, Function]) -> dict[Any, Function]:
    """Return decompositions that decline complex numbers if the operator has a formula."""
    return {operator: _declining(one) if _has_formula(operator) else one for operator, one in table.items()}


def _has_formula(operator: Any) -> bool:
    return isinstance(operator, torch._ops.OpOverload) and formula_of(operator) is not None


def _declining(decomposition: Function) -> Function:
    def decompose(*given: Any, **named: Any) -> Any:
        if any(isinstance(one, torch.Tensor) and one.is_complex() for one in (*given, *named.values())):
            return NotImplemented
        return decomposition(*given, **named)

    return decompose
