# SPDX-License-Identifier: BSD-3-Clause
"""Normalisations, with the statistics that the CPU's kernels return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.row import Body, Operator
from torch_outboard.kernels.refusal import ClassRefusal

__all__ = ["OPERATORS"]


def _batch_norm(input: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *numbers: Any) -> Any:
    """Normalise with the overload whose schema declares that it writes the running statistics."""
    if len(numbers) != 2 or (mean is None) != (var is None):
        raise ClassRefusal("only the functional form has a kernel [no-definition]")
    legit = torch.ops.aten._native_batch_norm_legit
    if mean is None:
        return _with_statistics(legit.no_stats(input, weight, bias, training, *numbers), input, weight, bias)
    result = legit.default(input, weight, bias, mean, var, training, *numbers)
    if training:
        return _with_statistics(result, input, weight, bias, mean, var)
    # In evaluation mode, the CPU's kernel saves no statistics, as its meta kernel reports. The
    # decomposition copies the running statistics.
    return (result[0], *((input if weight is None else weight).new_zeros(0) for _ in range(2)))


def _batch_norm_in_place(input: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """Normalise with the overloads whose schemas declare their writes, with or without running statistics."""
    if len(rest) == 3:
        training, *numbers = rest
        return _batch_norm(input, weight, bias, None, None, training, *numbers)
    return _batch_norm(input, weight, bias, *rest)


def _batch_norm_with_update(input: Any, weight: Any, bias: Any, mean: Any, var: Any, *numbers: Any) -> Any:
    """Normalise in training mode; the last result is cuDNN's reserve space, which is empty here."""
    return (*_batch_norm(input, weight, bias, mean, var, True, *numbers), input.new_zeros(0, dtype=torch.uint8))


def _layer_norm(input: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    result = decomposition_table[torch.ops.aten.native_layer_norm.default](input, shape, weight, bias, eps)
    return _with_statistics(result, input, weight, bias)


def _group_norm(input: torch.Tensor, weight: Any, bias: Any, *args: Any) -> Any:
    result = decomposition_table[torch.ops.aten.native_group_norm.default](input, weight, bias, *args)
    return _with_statistics(result, input, weight, bias)


def _with_statistics(result: Any, input: torch.Tensor, *parameters: torch.Tensor | None) -> Any:
    """Return the result, with means and reciprocal deviations converted to the type that the CPU returns.

    This is the input's type, or float32 if a parameter's type differs from it.
    """
    is_mixed = any(parameter is not None and parameter.dtype != input.dtype for parameter in parameters)
    dtype = torch.float32 if is_mixed else input.dtype
    values, mean, rstd = result
    return values, mean.to(dtype), rstd.to(dtype)


def _rms_norm(input: torch.Tensor, shape: Sequence[int], weight: Any, eps: float | None) -> Any:
    """Normalise; the second result is the reciprocal root of each row's mean square, in the accumulation type."""
    values = input.to(torch.promote_types(input.dtype, torch.float32))
    inner = list(range(input.dim() - len(shape), input.dim()))
    square = values.square().mean(inner, keepdim=True)
    rstd = torch.rsqrt(square + (torch.finfo(values.dtype).eps if eps is None else eps))
    result = values * rstd
    return (result if weight is None else result * weight).to(input.dtype), rstd


def _rms_norm_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    shape: Sequence[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    wanted: Sequence[bool],
) -> Any:
    """Return only the requested gradients."""
    wide = torch.promote_types(input.dtype, torch.float32)
    first = input.dim() - len(shape)
    grad, normal = grad.to(wide), input.to(wide) * rstd
    of_input = of_weight = None
    if wanted[0]:
        scaled = grad if weight is None else grad * weight
        along = (normal * scaled).mean(list(range(first, input.dim())), keepdim=True)
        of_input = ((scaled - normal * along) * rstd).to(input.dtype)
    if wanted[1] and weight is not None:
        products = grad * normal
        of_weight = (products.sum(list(range(first))) if first else products).to(weight.dtype)
    return of_input, of_weight


def _weight_norm_backward(
    grad: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    others = [axis for axis in range(v.dim()) if axis != dim % v.dim()]
    wide = torch.promote_types(v.dtype, torch.float32)
    grad, v_wide, g_wide, norms = (tensor.to(wide) for tensor in (grad, v, g, norms))
    along = (grad * v_wide).sum(others, keepdim=True)
    grad_v = g_wide / norms * (grad - v_wide * along / (norms * norms))
    return grad_v.to(v.dtype), (along / norms).to(g.dtype)


OPERATORS = (
    Operator(
        "aten::_batch_norm_with_update",
        computed=Body(_batch_norm_with_update),
        facts=Facts(layout="suggested", correct="correct_statistics"),
    ),
    Operator("aten::_fused_rms_norm", computed=Body(_rms_norm)),
    Operator("aten::_fused_rms_norm.default", facts=Facts(shape_rule="fused_rms_norm")),
    Operator(
        "aten::_fused_rms_norm_backward",
        computed=Body(_rms_norm_backward),
        facts=Facts(layout="like", cpu_operator="outboard::rms_norm_backward"),
    ),
    Operator("aten::_fused_rms_norm_backward.default", facts=Facts(shape_rule="fused_rms_norm_backward")),
    Operator(
        "aten::_native_batch_norm_legit",
        computed=Body(_batch_norm_in_place),
        facts=Facts(layout="suggested", correct="correct_statistics"),
    ),
    Operator("aten::_weight_norm_interface_backward", computed=Body(_weight_norm_backward)),
    Operator("aten::batch_norm_backward aten::native_batch_norm_backward", facts=Facts(layout="suggested", like=1)),
    Operator(
        "aten::native_batch_norm",
        computed=Body(_batch_norm),
        facts=Facts(layout="suggested", correct="correct_statistics", undeclared_writes="running_mean running_var"),
    ),
    Operator("aten::native_group_norm.default", decomposition=_group_norm, facts=Facts(shape_rule="native_group_norm")),
    Operator("aten::native_layer_norm.default", decomposition=_layer_norm, facts=Facts(shape_rule="native_layer_norm")),
    Operator("aten::native_layer_norm_backward.default", facts=Facts(shape_rule="native_layer_norm_backward")),
)
