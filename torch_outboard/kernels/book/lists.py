# SPDX-License-Identifier: BSD-3-Clause
"""Operators over lists of tensors, defined by the operator for one tensor of each list: both return the same bits.

In a trace, a tensor of one dimension stands for a list. A tensor without dimensions stands for a tensor of one element
or a number. Optimizers have their own formulas (optimizers.py).
"""

from __future__ import annotations

import torch

from torch_outboard.codegen.dialects.dialect import HALVES
from torch_outboard.kernels.book.rounding import rounded
from torch_outboard.kernels.book.row import Operator, PerTensor
from torch_outboard.kernels.refusal import ClassRefusal

__all__ = ["OPERATORS", "changed"]

_UNARY = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma"),
    *("log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt"),
    *("tan", "tanh", "trunc"),
)
_BINARY = ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "clamp_max.Tensor", "clamp_min.Tensor")


def changed(self: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor in another type, as a new tensor."""
    return self.to(dtype) if self.dtype != dtype else self.clone()


def _power(self: torch.Tensor, exponent: torch.Tensor) -> list[torch.Tensor]:
    """Raise to a power passed by value, with the CPU's own formulas for some exponents."""
    if not self.dtype.is_floating_point:
        raise ClassRefusal("integer pow depends on the exponent's value [wrong-call]")
    if self.dtype in HALVES:
        exponent = rounded(exponent.to(self.dtype))
    x = self.to(torch.promote_types(self.dtype, torch.float32))
    result = torch.pow(x, exponent.to(x.dtype))
    own: list[tuple[float, torch.Tensor]] = [(1, x), (-1, 1 / x), (2, x * x), (-2, 1 / (x * x)), (3, x * x * x)]
    if self.dtype != torch.float16:
        own += [(0.5, x.sqrt()), (-0.5, x.rsqrt())]
    for constant, value in own:
        result = torch.where(exponent == constant, value, result)
    return [result.to(self.dtype)]


def _copy(self: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
    return [changed(source, self.dtype)]


def _zero(self: torch.Tensor) -> list[torch.Tensor]:
    return [torch.zeros_like(self)]


def _clone(self: torch.Tensor) -> list[torch.Tensor]:
    return [self.clone()]


OPERATORS = (
    *(Operator(f"aten::_foreach_{name}", each=PerTensor(f"aten::{name}")) for name in (*_UNARY, "addcdiv", "addcmul")),
    *(Operator(f"aten::_foreach_{name.partition('.')[0]}", each=PerTensor(f"aten::{name}")) for name in _BINARY),
    Operator("aten::_foreach_clone", each=PerTensor(_clone, count=1)),
    Operator("aten::_foreach_copy_.default", each=PerTensor(_copy, count=2)),
    Operator("aten::_foreach_lerp", each=PerTensor("aten::lerp.Scalar", {"List": "aten::lerp.Tensor"})),
    Operator("aten::_foreach_max", each=PerTensor(reduction="list_reductions:greatest")),
    Operator("aten::_foreach_maximum", each=PerTensor("aten::clamp_min.Tensor", {"List": "aten::maximum"})),
    Operator("aten::_foreach_minimum", each=PerTensor("aten::clamp_max.Tensor", {"List": "aten::minimum"})),
    Operator("aten::_foreach_norm", each=PerTensor(reduction="list_reductions:norm"), has_written_numbers=True),
    Operator(
        "aten::_foreach_pow",
        each=PerTensor(
            by_overload={
                "List": "aten::pow.Tensor_Tensor",
                "Scalar": "aten::pow.Tensor_Scalar",
                "ScalarAndTensor": "aten::pow.Scalar",
                "ScalarList": _power,
            }
        ),
        has_written_numbers=True,  # lists of exponents are not written into kernels
    ),
    Operator("aten::_foreach_powsum", each=PerTensor(reduction="list_reductions:power_sum"), has_written_numbers=True),
    Operator("aten::_foreach_zero", each=PerTensor(_zero, count=1)),
)
