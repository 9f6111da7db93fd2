# SPDX-License-Identifier: BSD-3-Clause
"""Complex numbers as pairs of reals: formulas for operators on complex tensors.

Inductor lowers no complex numbers. A graph with complex values is therefore rewritten with pairs, one operator at a
time (kernels/plans/pairs.py). A formula takes `kind`, the type of reals in which the operator computes, and the
operator's arguments with a Pair in place of each complex tensor. It returns a tensor, a Pair, or a list of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_outboard.kernels.book import complex_functions, fourier
from torch_outboard.kernels.book.pair import Pair, divide, multiply, pair_of, tensors_of
from torch_outboard.kernels.book.row import Function

__all__ = ["formula_of", "is_componentwise", "prefer_formulas"]


# Arithmetic. torch's kernels convert a real operand to a complex number. Its imaginary part of 0
# takes part in the computation: in a product, 0 times infinity is NaN.


def _add(kind: torch.dtype, self: Any, other: Any, *, alpha: Any = 1) -> Pair:
    x, y = pair_of(self, kind), pair_of(other, kind)
    if alpha != 1:
        y = multiply(kind, y, alpha)
    return Pair(x.re + y.re, x.im + y.im)


def _subtract(kind: torch.dtype, self: Any, other: Any, *, alpha: Any = 1) -> Pair:
    x, y = pair_of(self, kind), pair_of(other, kind)
    if alpha != 1:
        y = multiply(kind, y, alpha)
    return Pair(x.re - y.re, x.im - y.im)


def _add_product(kind: torch.dtype, self: Any, first: Any, second: Any, *, value: Any = 1) -> Pair:
    product = multiply(kind, first, second)
    return _add(kind, self, product, alpha=value)


def _add_quotient(kind: torch.dtype, self: Any, first: Any, second: Any, *, value: Any = 1) -> Pair:
    return _add(kind, self, divide(kind, first, second), alpha=value)


def _conjugate(kind: torch.dtype, self: Pair) -> Pair:
    return Pair(self.re, -self.im)


def _size(kind: torch.dtype, self: Pair) -> torch.Tensor:
    return torch.hypot(self.re, self.im)


def _angle(kind: torch.dtype, self: Pair) -> torch.Tensor:
    return torch.atan2(self.im, self.re)


def _sign(kind: torch.dtype, self: Pair) -> Pair:
    size = torch.hypot(self.re, self.im)
    return Pair(*(torch.where(size == 0, 0, part / size) for part in self))


def _variance(kind: torch.dtype, self: Pair, dim: Any = None, **named: Any) -> Any:
    """Return the sum of the variances of both parts."""
    variance = torch.ops.aten.var.correction
    return variance(self.re, dim, **named) + variance(self.im, dim, **named)


def _variance_and_mean(kind: torch.dtype, self: Pair, dim: Any = None, **named: Any) -> Any:
    (first, re), (second, im) = (torch.ops.aten.var_mean.correction(part, dim, **named) for part in self)
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


def _any(kind: torch.dtype, self: Pair, *args: Any) -> Any:
    return torch.any(_not_equal(kind, self, 0), *args)


def _logical(operator: Function) -> Function:
    """Return the formula of a logical operator; a number is true if it is not 0."""

    def compare(kind: torch.dtype, self: Any, other: Any) -> Any:
        return operator(_not_equal(kind, self, 0), _not_equal(kind, other, 0))

    return compare


def _where(kind: torch.dtype, condition: torch.Tensor, self: Any, other: Any) -> Pair:
    x, y = pair_of(self, kind), pair_of(other, kind)
    return Pair(torch.where(condition, x.re, y.re), torch.where(condition, x.im, y.im))


# Conversions from and to reals.


def _complex(kind: torch.dtype, real: torch.Tensor, imag: torch.Tensor) -> Pair:
    return Pair(real, imag)


def _polar(kind: torch.dtype, size: torch.Tensor, angle: torch.Tensor) -> Pair:
    return Pair(size * angle.cos(), size * angle.sin())


def _as_real(kind: torch.dtype, self: Pair) -> torch.Tensor:
    return torch.stack(self, -1)


def _as_complex(kind: torch.dtype, self: torch.Tensor) -> Pair:
    return Pair(self.select(-1, 0), self.select(-1, 1))


def _convert(kind: torch.dtype, self: Any, dtype: torch.dtype) -> Any:
    """Convert from or to complex numbers. A bool is True if the number is not 0."""
    if dtype.is_complex:
        return pair_of(self, dtype.to_real())
    return _not_equal(kind, self, 0) if dtype == torch.bool else self.re.to(dtype)


def _copy(kind: torch.dtype, self: Any, source: Any, non_blocking: bool = False) -> Any:
    return pair_of(source, kind) if isinstance(self, Pair) else _convert(kind, source, self.dtype)


# Matrix products: one complex product is four real products.


def _product(operator: Function) -> Function:
    """Return the formula of a product of two matrices, or of two batches of matrices."""

    def multiply_matrices(kind: torch.dtype, self: Pair, other: Pair) -> Pair:
        return Pair(
            operator(self.re, other.re) - operator(self.im, other.im),
            operator(self.re, other.im) + operator(self.im, other.re),
        )

    return multiply_matrices


def _product_and_sum(operator: Function) -> Function:
    """Return the formula of a product added to a tensor. The tensor is not read if its factor is 0."""
    product = _product(operator)

    def add_product(kind: torch.dtype, self: Any, first: Pair, second: Pair, *, beta: Any = 1, alpha: Any = 1) -> Pair:
        result = product(kind, first, second)
        if alpha != 1:
            result = multiply(kind, result, alpha)
        return result if beta == 0 else _add(kind, result, self, alpha=beta)

    return add_product


def _full(kind: torch.dtype, size: Any, value: Any, **named: Any) -> Pair:
    number, named = complex(value), {**named, "dtype": kind}
    return Pair(torch.full(size, number.real, **named), torch.full(size, number.imag, **named))


def _scalar(kind: torch.dtype, value: Any, **named: Any) -> Pair:
    return _full(kind, (), value, **named)


def _empty(kind: torch.dtype, size: Any, **named: Any) -> Pair:
    return _full(kind, size, 0, **{name: value for name, value in named.items() if name != "memory_format"})


def _fill(kind: torch.dtype, self: Pair, value: Any) -> Pair:
    filling = tensors_of(pair_of(value, kind), self)
    return Pair(*(number.expand(part.shape).clone() for part, number in zip(self, filling, strict=True)))


def _pad(kind: torch.dtype, self: Pair, pad: Any, value: Any = 0) -> Pair:
    parts = zip(self, pair_of(value, kind), strict=True)
    return Pair(*(torch.ops.aten.constant_pad_nd.default(part, pad, number) for part, number in parts))


def _combine(kind: torch.dtype, base: Pair, rows: Any, order: Any, values: Pair, how: str, include_self: bool) -> Any:
    """Set or add rows of both parts in the same way. Other reductions do not work on the parts separately."""
    if how not in ("set", "sum", "mean"):
        return NotImplemented
    combine = torch.ops.outboard.combine_sorted.default
    return Pair(*(combine(old, rows, order, new, how, include_self) for old, new in zip(base, values, strict=True)))


def _masked_index(kind: torch.dtype, self: Pair, mask: Any, indices: Any, fill: Any) -> Pair:
    index = torch.ops.aten._unsafe_masked_index.default
    return Pair(*(index(part, mask, indices, number) for part, number in zip(self, pair_of(fill, kind), strict=True)))


# Products over many numbers, in as many steps as their count can be halved.


def _all_multiplied(kind: torch.dtype, self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Pair:
    parts = pair_of(self, kind)
    terms = Pair(*(part.reshape(-1) if dim is None or part.dim() == 0 else part.movedim(dim, -1) for part in parts))
    while (length := int(terms.re.shape[-1])) > 1:
        half = length // 2
        first, second, rest = zip(*(part.split((half, half, length - 2 * half), -1) for part in terms), strict=True)
        product = multiply(kind, Pair(*first), Pair(*second))
        terms = Pair(*(torch.cat(both, -1) for both in zip(product, rest, strict=True))) if length % 2 else product
    if int(terms.re.shape[-1]) == 0:
        terms = Pair(*(terms.re.new_full((*terms.re.shape[:-1], 1), number) for number in (1, 0)))
    result = Pair(*(part.select(-1, 0) for part in terms))
    return Pair(*(part.unsqueeze(dim) for part in result)) if keepdim and parts.re.dim() > 0 else result


def _multiplied_so_far(kind: torch.dtype, self: Any, dim: int, *, dtype: Any = None) -> Pair:
    parts = pair_of(self, kind)
    if parts.re.dim() == 0:
        return parts
    so_far, step = Pair(*(part.movedim(dim, -1) for part in parts)), 1
    while step < int(so_far.re.shape[-1]):
        late = Pair(*(part[..., step:] for part in so_far))
        early = Pair(*(part[..., :-step] for part in so_far))
        product = multiply(kind, late, early)
        so_far = Pair(*(torch.cat((part[..., :step], new), -1) for part, new in zip(so_far, product, strict=True)))
        step *= 2
    return Pair(*(part.movedim(-1, dim) for part in so_far))


_FORMULAS: dict[str, Function] = {
    **complex_functions.FORMULAS,
    **fourier.FORMULAS,
    "aten::_conj": _conjugate,
    "aten::_unsafe_masked_index": _masked_index,
    "aten::_conj_physical": _conjugate,
    "aten::abs": _size,
    "aten::add": _add,
    "aten::addcdiv": _add_quotient,
    "aten::addcmul": _add_product,
    "aten::addmm": _product_and_sum(torch.ops.aten.mm.default),
    "aten::angle": _angle,
    "aten::any": _any,
    "aten::baddbmm": _product_and_sum(torch.ops.aten.bmm.default),
    "aten::bmm": _product(torch.ops.aten.bmm.default),
    "aten::complex": _complex,
    "aten::conj_physical": _conjugate,
    "aten::constant_pad_nd": _pad,
    "aten::copy": _copy,
    "aten::cumprod": _multiplied_so_far,
    "aten::div": divide,
    "aten::empty": _empty,
    "aten::eq": _equal,
    "aten::fill": _fill,
    "aten::full": _full,
    "aten::isnan": _is_nan,
    "aten::logical_and": _logical(torch.logical_and),
    "aten::logical_not": _is_zero,
    "aten::logical_or": _logical(torch.logical_or),
    "aten::logical_xor": _logical(torch.logical_xor),
    "aten::mm": _product(torch.ops.aten.mm.default),
    "aten::mul": multiply,
    "aten::ne": _not_equal,
    "aten::polar": _polar,
    "aten::prod": _all_multiplied,
    "aten::scalar_tensor": _scalar,
    "aten::sgn": _sign,
    "aten::sub": _subtract,
    "aten::var": _variance,
    "aten::var_mean": _variance_and_mean,
    "aten::view_as_complex": _as_complex,
    "aten::view_as_real": _as_real,
    "aten::where": _where,
    "outboard::combine_sorted": _combine,
    "prims::convert_element_type": _convert,
}

# Operators that compute the real part from real parts, and the imaginary part from imaginary parts
# in the same way.
_COMPONENTWISE = frozenset(
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
    """Return the formula of an operator of a graph, or None if there is none."""
    return _FORMULAS.get(_base(operator))


def is_componentwise(operator: torch._ops.OpOverload) -> bool:
    """Return True if an operator computes the real part from real parts and the imaginary part from imaginary parts."""
    return _base(operator) in _COMPONENTWISE


def prefer_formulas(table: Mapping[Any, Function]) -> dict[Any, Function]:
    """Return decompositions that decline complex numbers if the operator has a formula."""
    return {operator: _decline_complex(body) if _has_formula(operator) else body for operator, body in table.items()}


def _has_formula(operator: Any) -> bool:
    return isinstance(operator, torch._ops.OpOverload) and formula_of(operator) is not None


def _decline_complex(decomposition: Function) -> Function:
    def decompose(*args: Any, **named: Any) -> Any:
        if any(isinstance(value, torch.Tensor) and value.is_complex() for value in (*args, *named.values())):
            return NotImplemented
        return decomposition(*args, **named)

    return decompose
