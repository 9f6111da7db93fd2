# SPDX-License-Identifier: BSD-3-Clause
"""Operators over lists of tensors, as functions of one tensor of each list.

A foreach operator is traced as its operator for a single tensor, so that it returns the same bits. Optimizers have
their own formulas (optimizers.py). In a trace, a tensor of one dimension stands for a list. A tensor without dimensions
stands for a tensor of one element or a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_outboard.codegen.dialects.dialect import HALVES
from torch_outboard.kernels.numbers import rounded
from torch_outboard.kernels.operators import base_name, overload_of
from torch_outboard.kernels.refusal import Refusal

__all__ = ["ELEMENTS", "Single", "canonical", "changed", "is_by_value", "numbers_of_lists", "single_of"]

# Lists of tensors of one element, one tensor for each row.
ELEMENTS = ("state_steps",)
# The size of a stand-in for a list: any number, so that the size is a symbol.
_SIZE = 64

_UNARY = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma"),
    *("log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt"),
    *("tan", "tanh", "trunc"),
)
# The operator for the overload with a second list, and for the overloads with a number or a tensor in its place.
_BINARY = {
    "add": ("aten::add.Tensor", "aten::add.Tensor"),
    "sub": ("aten::sub.Tensor", "aten::sub.Tensor"),
    "mul": ("aten::mul.Tensor", "aten::mul.Tensor"),
    "div": ("aten::div.Tensor", "aten::div.Tensor"),
    "clamp_max": ("aten::clamp_max.Tensor", "aten::clamp_max.Tensor"),
    "clamp_min": ("aten::clamp_min.Tensor", "aten::clamp_min.Tensor"),
    "maximum": ("aten::maximum", "aten::clamp_min.Tensor"),
    "minimum": ("aten::minimum", "aten::clamp_max.Tensor"),
}
# Operators that write an exponent, a base or an order into kernels, as the operators for one tensor do; lists of
# exponents are not written into kernels.
_WRITTEN_IN = ("aten::_foreach_norm", "aten::_foreach_pow", "aten::_foreach_powsum")


@dataclass(frozen=True)
class Single:
    """The operator for one tensor: its name or a function, and the places of the arguments that it gets.

    The places are those of the arguments of the operator over lists.
    """

    operator: str | Callable[..., Sequence[torch.Tensor]]
    arguments: tuple[int, ...]


def single_of(name: str) -> Single:
    """Return the operator for one tensor that a foreach operator stands for.

    Raises Refusal if none is known.
    """
    base = base_name(name).removeprefix("aten::_foreach_")
    overload = name.partition(".")[2]
    arguments = tuple(range(len(overload_of(name)._schema.arguments)))
    if base in _UNARY:
        return Single(f"aten::{base}", arguments)
    if base in _BINARY:
        return Single(_BINARY[base][overload != "List"], arguments)
    if base == "pow" and overload == "ScalarList":
        return Single(_power, arguments)
    if base == "pow":
        kinds = {"List": "Tensor_Tensor", "Scalar": "Tensor_Scalar", "ScalarAndTensor": "Scalar"}
        return Single(f"aten::pow.{kinds[overload]}", arguments)
    if base in ("addcmul", "addcdiv"):
        return Single(f"aten::{base}", arguments)
    if base == "lerp":
        return Single("aten::lerp.Tensor" if overload == "List" else "aten::lerp.Scalar", arguments)
    if base == "copy" and name.startswith("aten::_foreach_copy_"):
        return Single(_copy, (0, 1))
    if base == "zero":
        return Single(_zero, (0,))
    if base == "clone":
        return Single(_clone, (0,))
    raise Refusal("it is no operator of single elements")


def changed(self: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a new tensor of a type."""
    return self.to(dtype) if self.dtype != dtype else self.clone()


def _power(self: torch.Tensor, exponent: torch.Tensor) -> list[torch.Tensor]:
    """Raise to a power that is by value, with the CPU's own formulas for some exponents."""
    if not self.dtype.is_floating_point:
        raise Refusal("of integers, the exponent decides whether there is a power")
    if self.dtype in HALVES:
        exponent = rounded(exponent.to(self.dtype))
    x = self.to(torch.promote_types(self.dtype, torch.float32))
    found = torch.pow(x, exponent.to(x.dtype))
    own = ((1, x), (0.5, x.sqrt()), (-0.5, x.rsqrt()), (-1, 1 / x), (2, x * x), (-2, 1 / (x * x)), (3, x * x * x))
    for one, value in own:
        found = torch.where(exponent == one, value, found)
    return [found.to(self.dtype)]


def _copy(self: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
    return [changed(source, self.dtype)]


def _zero(self: torch.Tensor) -> list[torch.Tensor]:
    return [torch.zeros_like(self)]


def _clone(self: torch.Tensor) -> list[torch.Tensor]:
    return [self.clone()]


def is_by_value(name: str, argument: torch.Argument) -> bool:
    """Return True if launches take an argument's numbers by value, so that kernels serve all numbers."""
    kind = str(argument.type)
    return kind == "List[number]" or (kind in ("number", "float") and base_name(name) not in _WRITTEN_IN)


def numbers_of_lists(name: str) -> int:
    """Return a bit mask of the arguments of an operator over lists whose numbers are by value."""
    arguments = overload_of(name)._schema.arguments
    return sum(1 << place for place, one in enumerate(arguments) if is_by_value(name, one))


def canonical(name: str, arguments: Sequence[Any]) -> list[Any]:
    """Return arguments that stand for the whole class: sizes don't count, and neither do numbers by value."""
    return [
        _stand_in(value, is_by_value(name, declared), is_element=declared.name in ELEMENTS)
        for value, declared in zip(arguments, overload_of(name)._schema.arguments, strict=True)
    ]


def _stand_in(value: Any, is_by_value: bool, is_element: bool) -> Any:
    match value:
        case torch.Tensor() if value.device.type == "cpu":
            return torch.zeros([1] * value.dim(), dtype=value.dtype)
        case torch.Tensor():
            if value.numel() != 1:
                raise Refusal("a tensor beside its lists has several elements", is_of_class=False)
            return torch.empty([1] * value.dim(), dtype=value.dtype, device="meta")
        case [torch.Tensor() as first, *_]:
            return [torch.empty(() if is_element else (_SIZE,), dtype=first.dtype, device="meta")]
        case [first, *_] if is_by_value:
            return [type(first)(1)]
        case int() | float() if is_by_value:
            return type(value)(1)
    return value
