# SPDX-License-Identifier: BSD-3-Clause
"""Operators whose plans take numbers by value, so that a new number needs no new kernel.

Any other number of a call is written into the kernels: torch's lowerings branch on some numbers, as on exponents. The
numbers here change from step to step in training, or from layer to layer, as bounds of random numbers do. Their
formulas take each number as a tensor of one element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_outboard.codegen.dialects.dialect import HALVES
from torch_outboard.kernels import random
from torch_outboard.kernels.fills import FILLS
from torch_outboard.kernels.operators import base_name, overload_of
from torch_outboard.kernels.optimizers import FORMULAS as OPTIMIZERS

__all__ = ["by_value", "formula_of", "guarded", "rounded", "told_by_sizes"]

_Formula = Callable[..., torch.Tensor]


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Round halves, which kernels compute in float, to their type."""
    return tensor.view(torch.int16).view(tensor.dtype)


def _combine(*operands: Any, compute: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Compute in the type that the operator's kernels compute in. The last operand is the number."""
    # This imports sympy. A process that reads all its plans from disk does not need sympy.
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    computed, result = elementwise_dtypes(*operands[:-1], type_promotion_kind=kind)
    return compute(*(one.to(computed) for one in operands)).to(result)


def _factor(self: torch.Tensor, other: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """Return the factor of a sum as the CPU's kernels take it: for halves, rounded to their type."""
    common = torch.result_type(self, other)
    return rounded(alpha.to(common)) if common in HALVES else alpha


def _add(self: torch.Tensor, other: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    return _combine(self, other, _factor(self, other, alpha), compute=lambda x, y, a: x + y * a)


def _sub(self: torch.Tensor, other: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    return _combine(self, other, _factor(self, other, alpha), compute=lambda x, y, a: x - y * a)


def _addcmul(self: torch.Tensor, first: torch.Tensor, second: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return _combine(self, first, second, value, compute=lambda x, y, z, v: x + v * y * z)


def _addcdiv(self: torch.Tensor, first: torch.Tensor, second: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return _combine(self, first, second, value, compute=lambda x, y, z, v: x + v * y / z)


def _lerp(self: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    # From the nearer end, as torch's kernels do.
    def compute(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.where(w.abs() < 0.5, x + w * (y - x), y - (y - x) * (1 - w))

    return _combine(self, end, weight, compute=compute)


def _masked_fill(self: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.masked_fill.Tensor(self, mask, value.to(self.dtype))
    return result


def _typed(self: torch.Tensor, *numbers: torch.Tensor | None) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Convert a tensor and numbers to their common type, by categories."""
    common = self.dtype
    for one in numbers:
        if one is not None and one.dtype.is_floating_point and not common.is_floating_point:
            common = torch.get_default_dtype()
        elif one is not None and common == torch.bool:
            common = one.dtype
    return self.to(common), [None if one is None else one.to(common) for one in numbers]


def _clamp(self: torch.Tensor, low: torch.Tensor | None, high: torch.Tensor | None) -> torch.Tensor:
    if low is not None and self.dtype == torch.uint8 and low.dtype == torch.int64 and torch.__version__ >= "2.15":
        low = low.clamp_min(0)  # a bound below the type has no effect; before torch 2.15 it wraps
    x, (low, high) = _typed(self, low, high)
    result: torch.Tensor = torch.ops.aten.clamp.Tensor(x, low, high)
    return result


def _clamp_min(self: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    return _clamp(self, low, None)


def _clamp_max(self: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return _clamp(self, None, high)


def _pow(self: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    x, (power,) = _typed(self, exponent)
    assert power is not None
    result: torch.Tensor = torch.ops.aten.pow.Tensor_Tensor(x, rounded(power) if x.dtype in HALVES else power)
    return result


# Operator without overload -> the names of the numbers, and the formula. It takes the arguments before the numbers, and
# the numbers.
_FORMULAS: dict[str, tuple[tuple[str, ...], _Formula]] = {
    "aten::add": (("alpha",), _add),
    "aten::sub": (("alpha",), _sub),
    "aten::addcmul": (("value",), _addcmul),
    "aten::addcdiv": (("value",), _addcdiv),
    "aten::clamp": (("min", "max"), _clamp),
    "aten::clamp_max": (("max",), _clamp_max),
    "aten::clamp_min": (("min",), _clamp_min),
    "aten::lerp": (("weight",), _lerp),
    "aten::pow": (("exponent",), _pow),
    "aten::masked_fill": (("value",), _masked_fill),
}


# Operator -> numbers that no plan reads, because sizes determine them.
_TOLD = {"aten::_scaled_dot_product_fused_attention_overrideable_backward": ("max_q", "max_k")}


# Operator without overload and form -> integers that plans treat as sizes, with guards.
_GUARDED = {
    "aten::constant_pad_nd": ("pad",),
    "aten::embedding_dense_backward": ("num_weights",),
    "aten::kthvalue": ("k",),
    "aten::randperm": ("n",),
    "aten::roll": ("shifts",),
    "aten::select_backward": ("index",),
    "aten::slice_backward": ("start", "end"),
    "aten::topk": ("k",),
    "aten::tril": ("diagonal",),
    "aten::triu": ("diagonal",),
    **{f"aten::upsample_{kind}": ("output_size",) for kind in ("bicubic2d", "bilinear2d", "linear1d")},
    **{f"aten::upsample_{kind}": ("output_size",) for kind in ("nearest1d", "nearest2d", "nearest3d")},
}


def guarded(name: str) -> tuple[int, ...]:
    """Return the places of the integers that an operator's plans have guards for."""
    names = _GUARDED.get(base_name(name), ())
    arguments = overload_of(name)._schema.arguments
    return tuple(place for place, one in enumerate(arguments) if one.name in names)


def _known(name: str) -> tuple[tuple[str, ...], _Formula] | None:
    return random.FORMULAS.get(name) or _FORMULAS.get(base_name(name))


def formula_of(name: str) -> _Formula:
    """Return the formula of an operator that draws, or that has numbers by value."""
    known = _known(name)
    assert known is not None
    return known[1]


def by_value(name: str) -> tuple[int, ...]:
    """Return the places, among the schema's arguments, of the numbers that an operator's plans take by value.

    Numbers that no plan reads are included: calls with other values of them share a plan.
    """
    if name in FILLS:
        named = (*FILLS[name].read, *FILLS[name].told)
        return tuple(place for place, one in enumerate(overload_of(name)._schema.arguments) if one.name in named)
    if name in _TOLD:
        return told_by_sizes(name)
    if base_name(name) in OPTIMIZERS:
        return tuple(place for place, one in enumerate(overload_of(name)._schema.arguments) if str(one.type) == "float")
    known = _known(name)
    if known is None:
        return ()
    names, formula = known
    arguments = overload_of(name)._schema.arguments
    # torch itself implements the overloads with a number in place of a tensor by these.
    tensors = [one for one in arguments if str(one.type) == "Tensor" and not one.kwarg_only]
    places = [place for place, one in enumerate(arguments) if one.name in names and str(one.type) != "Tensor"]
    has_all = len(places) == len(names) and len(tensors) + len(names) == formula.__code__.co_argcount
    return tuple(places) if has_all else ()


def told_by_sizes(name: str) -> tuple[int, ...]:
    """Return the places of the numbers that no plan of the operator reads."""
    arguments = overload_of(name)._schema.arguments
    told = FILLS[name].told if name in FILLS else _TOLD.get(name, ())
    return tuple(place for place, one in enumerate(arguments) if one.name in told)
