# SPDX-License-Identifier: BSD-3-Clause
"""Calls that may be wrong, derived from a right one by changing one thing of one argument."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .captured import OperatorCall
from .lists import UNCHECKED_VALUES


@dataclass(frozen=True)
class Change:
    """A change, and whether only the values of a tensor show that the call is wrong."""

    text: str
    is_of_values: bool
    call: OperatorCall


KINDS = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)
NUMBERS = (-1, 0, 300, 2**40, -2.5, 1e300, float("nan"), True)
# Of one element: no index, no count, no probability, no deviation.
_VALUES: dict[torch.dtype, tuple[float, ...]] = {
    torch.int64: (9999, -1, -9999),
    torch.int32: (9999, -1, -9999),
    torch.float32: (2.0, -1.0, float("nan"), float("inf")),
}
FEW_CHANGES = 4  # dimensions that are changed of one tensor


def changes_of(call: OperatorCall) -> Iterator[Change]:
    """Yield all changes of a call, one argument at a time."""
    for place, (value, declared) in enumerate(zip(call.arguments, call.operator._schema.arguments, strict=True)):
        if declared.name in _CODES:
            continue
        for text, of_values, changed in _changed(value, str(declared.type)):
            if of_values and declared.name in UNCHECKED_VALUES.get(call.name, ()):
                continue
            arguments = (*call.arguments[:place], changed, *call.arguments[place + 1 :])
            yield Change(f"{declared.name}: {text}", of_values, OperatorCall(call.operator, arguments))


# Integers that mean something else: a wrong one is no call that Python makes.
_CODES = ("dtype", "layout", "memory_format", "reduction", "padding_mode", "interpolation_mode")


def _changed(value: Any, declared: str) -> Iterator[tuple[str, bool, Any]]:
    if isinstance(value, torch.Tensor):
        yield from _tensors(value)
    elif isinstance(value, (list, tuple)) and value and all(isinstance(item, torch.Tensor) for item in value):
        for text, of_values, changed in _tensors(value[-1]):
            yield f"last {text}", of_values, [*value[:-1], changed]
        yield "empty list", False, []
    elif isinstance(value, (list, tuple)) and value and all(type(number) is int for number in value):
        for number in (value[0] + 1, value[0] - 1, 0, -3, 99):
            yield f"first is {number}", False, [number, *value[1:]]
        yield "one more", False, [*value, 1]
        yield "one less", False, list(value[:-1])
    elif declared in ("int", "Optional[int]", "SymInt", "Optional[SymInt]") and type(value) is int:
        for number in (value + 1, value - 1, 99, -99):
            yield str(number), False, number
    elif declared in ("number", "Optional[number]", "float", "Optional[float]") and isinstance(value, (int, float)):
        for replacement in NUMBERS:
            if declared not in ("float", "Optional[float]") or not isinstance(replacement, bool):
                yield str(replacement), False, replacement


def _tensors(tensor: torch.Tensor) -> Iterator[tuple[str, bool, torch.Tensor]]:
    for dim in range(min(tensor.dim(), FEW_CHANGES)):
        for size in {tensor.size(dim) + 1, max(tensor.size(dim) - 1, 0), 0} - {tensor.size(dim)}:
            yield f"size {size} of dimension {dim}", False, _with_size(tensor, dim, size)
    yield "a dimension more", False, tensor.unsqueeze(0).clone()
    if tensor.dim() > 0 and tensor.size(0) > 0:
        yield "a dimension less", False, tensor[0].clone()
    for dtype in KINDS:
        if dtype != tensor.dtype:
            yield str(dtype), False, tensor.real.to(dtype) if tensor.is_complex() else tensor.to(dtype)
    if tensor.numel() > 0:
        for value in _VALUES.get(tensor.dtype, ()):
            changed = tensor.contiguous().clone()
            changed.view(-1)[-1] = value
            yield f"a value of {value}", True, changed


def _with_size(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    if size < tensor.size(dim):
        return tensor.narrow(dim, 0, size).clone()
    if tensor.size(dim) == 0:
        return tensor.new_ones([*tensor.shape[:dim], size, *tensor.shape[dim + 1 :]])
    return torch.cat([tensor, tensor.narrow(dim, 0, size - tensor.size(dim))], dim)
