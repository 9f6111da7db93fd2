# SPDX-License-Identifier: BSD-3-Clause
"""Calls over lists of tensors: the operator for one tensor of each list, and arguments that represent a class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_outboard.kernels.book.table import operator_of
from torch_outboard.kernels.operators import overload_of
from torch_outboard.kernels.refusal import CallRefusal, OperatorRefusal

__all__ = ["ELEMENTS", "PerTensorOperator", "canonical", "is_by_value", "numbers_of_lists", "per_tensor_operator"]

# Lists of one-element tensors, one for each row.
ELEMENTS = ("state_steps",)
# The size of a list's stand-in. Any number works: the size becomes a symbol.
_SIZE = 64


@dataclass(frozen=True)
class PerTensorOperator:
    """The operator for one tensor: its name or a function, and the positions of the arguments passed to it.

    Positions count the arguments of the operator over lists.
    """

    operator: str | Callable[..., Sequence[torch.Tensor]]
    arguments: tuple[int, ...]


def per_tensor_operator(name: str) -> PerTensorOperator:
    """Return the operator that a foreach operator applies to each tensor.

    Raises Refusal if none is known.
    """
    each = operator_of(name).each
    operator = "" if each is None else each.by_overload.get(name.partition(".")[2], each.operator)
    if each is None or operator == "":
        raise OperatorRefusal("it is not an element-wise operator [no-definition]")
    count = len(overload_of(name)._schema.arguments) if each.count is None else each.count
    return PerTensorOperator(operator, tuple(range(count)))


def is_by_value(name: str, argument: torch.Argument) -> bool:
    """Return True if launches take an argument's numbers by value, so that one kernel serves all numbers."""
    kind = str(argument.type)
    return kind == "List[number]" or (kind in ("number", "float") and not operator_of(name).has_written_numbers)


def numbers_of_lists(name: str) -> int:
    """Return a bit mask of the arguments of a list operator whose numbers are passed by value."""
    arguments = overload_of(name)._schema.arguments
    return sum(1 << place for place, argument in enumerate(arguments) if is_by_value(name, argument))


def canonical(name: str, arguments: Sequence[Any]) -> list[Any]:
    """Return arguments that represent the whole class, which ignores sizes and the numbers passed by value."""
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
                raise CallRefusal("a tensor argument outside the lists has several elements [list-shapes]")
            return torch.empty([1] * value.dim(), dtype=value.dtype, device="meta")
        case [torch.Tensor() as first, *_]:
            return [torch.empty(() if is_element else (_SIZE,), dtype=first.dtype, device="meta")]
        case [first, *_] if is_by_value:
            return [type(first)(1)]
        case int() | float() if is_by_value:
            return type(value)(1)
    return value
