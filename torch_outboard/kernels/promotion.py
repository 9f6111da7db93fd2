# SPDX-License-Identifier: BSD-3-Clause
"""Promotion of numbers: the type to which an operator converts a number in place of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_outboard.kernels.book.table import operator_of
from torch_outboard.kernels.operators import functional_of, overload_of
from torch_outboard.kernels.refusal import ClassRefusal

__all__ = ["common_type", "is_tensor", "is_wide_number", "kinds_of", "number_type", "tensors_in"]


def tensors_in(arguments: Sequence[Any]) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            tensors.append(argument)
        elif isinstance(argument, (list, tuple)):
            tensors += [item for item in argument if isinstance(item, torch.Tensor)]
    return tensors


def is_tensor(declared: torch.Argument) -> bool:
    return str(declared.type) in ("Tensor", "Optional[Tensor]")


def is_wide_number(tensor: torch.Tensor, real: torch.dtype) -> bool:
    """Return True for a float64 or complex128 number on the CPU if kernels do not compute in such a type."""
    is_wide = tensor.dtype in (torch.float64, torch.complex128)
    return is_wide and real != torch.float64 and tensor.dim() == 0 and tensor.device.type == "cpu"


def common_type(kinds: Sequence[torch.dtype]) -> torch.dtype:
    """Return the type to which tensors of these types promote."""
    if not kinds:
        raise ClassRefusal("all its tensor arguments are 0-dimensional [number-for-tensor]")
    common = kinds[0]
    for kind in kinds[1:]:
        common = torch.promote_types(common, kind)
    return common


def kinds_of(name: str, arguments: Sequence[Any]) -> list[torch.dtype]:
    """Return the types that take part in promotion: of the tensors with dimensions, if there are any.

    An `out=` tensor takes no part.
    """
    schema = overload_of(name)._schema.arguments
    read = [value for value, declared in zip(arguments, schema, strict=True) if not declared.is_out]
    tensors = tensors_in(read)
    return [tensor.dtype for tensor in tensors if tensor.dim() > 0] or [tensor.dtype for tensor in tensors]


def number_type(name: str, arguments: Sequence[Any], default: torch.dtype) -> torch.dtype:
    """Return the type to which an operator converts a number of type `given`.

    torch promotes by categories: a number changes the type of tensors only if its own category is higher. An operator
    that computes integers in a floating type also converts the number to that type, whatever the type of the tensors.
    """
    if torch.Tag.pointwise not in overload_of(name).tags and not operator_of(name).promotes:
        raise ClassRefusal("a number was passed for a tensor [number-for-tensor]")
    common = common_type(kinds_of(name, arguments))
    if default.is_complex and not common.is_complex:
        common = torch.result_type(torch.empty(1, dtype=common, device="meta"), 1j)
    elif default.is_floating_point and not (common.is_floating_point or common.is_complex):
        common = torch.get_default_dtype()
    elif common == torch.bool and default != torch.bool:
        common = default
    result = _result_type(name, arguments, common)
    return torch.promote_types(common, result) if result.is_floating_point else common


def _result_type(name: str, arguments: Sequence[Any], common: torch.dtype) -> torch.dtype:
    """Return the type of the operator's result if its tensors and numbers promote to `common`."""
    functional = functional_of(name)
    if functional is None:
        raise ClassRefusal("a number was passed for a tensor, and there is no functional form [number-for-tensor]")
    stand_ins: list[Any] = []
    for value, declared in zip(arguments, overload_of(name)._schema.arguments, strict=True):
        if declared.is_out:
            continue
        if isinstance(value, torch.Tensor):
            stand_ins.append(torch.empty([1] * value.dim(), dtype=value.dtype, device="meta"))
        elif isinstance(value, (bool, int, float, complex)) and is_tensor(declared):
            stand_ins.append(torch.empty((), dtype=common, device="meta"))
        else:
            stand_ins.append(value)
    named = {
        declared.name: stand_ins.pop() for declared in reversed(functional._schema.arguments) if declared.kwarg_only
    }
    result: torch.Tensor = functional(*stand_ins, **named)
    return result.dtype
