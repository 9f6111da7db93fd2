# SPDX-License-Identifier: BSD-3-Clause
"""The fuzzer's changes of a right call: values, sizes, element types, numbers, single wrong arguments.

Each change is drawn with its own seed, so that a failing call can be repeated without one of its changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..refusals.captured import OperatorCall
from ..refusals.mutations import changes_of
from .placed import place_all

MAX_ELEMENTS = 20_000  # of one tensor
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
)


@dataclass(frozen=True)
class Change:
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.seed}"

    def of(self, call: OperatorCall) -> OperatorCall:
        """Return the changed call, or the call itself if there is nothing to change."""
        return KINDS[self.kind](call, random.Random(self.seed))


def drawn(generator: random.Random, may_be_wrong: bool) -> list[Change]:
    """Draw the changes of one call. Without `may_be_wrong` a right call stays right."""
    kinds = ["values"]
    if may_be_wrong:
        kinds = [kind for kind, probability in PROBABILITIES.items() if generator.random() < probability]
    return [Change(kind, generator.randrange(1 << 30)) for kind in [*kinds, "layouts"]]


def _map_tensors(call: OperatorCall, make: Callable[[torch.Tensor], torch.Tensor]) -> OperatorCall:
    arguments = tree_map(lambda value: make(value) if isinstance(value, torch.Tensor) else value, call.arguments)
    return replace(call, arguments=tuple(arguments))


def _values(call: OperatorCall, generator: random.Random) -> OperatorCall:
    """Shuffle the values of integers, which may be indices, and shuffle and scale the values of other types."""
    torch.manual_seed(generator.randrange(1 << 30))

    def fresh(tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.reshape(-1)[torch.randperm(tensor.numel())].reshape(tensor.shape)
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return flat * (0.5 + torch.rand(tensor.shape)).to(tensor.dtype)
        return flat

    return _map_tensors(call, fresh)


def _sizes(call: OperatorCall, generator: random.Random) -> OperatorCall:
    """Replace each size by another one, the same wherever the size occurs, in tensors and in lists of sizes."""
    tensors = [tensor for tensor in tree_leaves(call.arguments) if isinstance(tensor, torch.Tensor)]
    occurring = sorted({size for tensor in tensors for size in tensor.shape if size > 1})
    new = {size: generator.choice(SIZES) for size in occurring}

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        sizes = [new.get(size, size) for size in tensor.shape]
        count = 1
        for size in sizes:
            count *= size
        if count > MAX_ELEMENTS:
            return tensor
        values = tensor.reshape(-1) if tensor.numel() else tensor.new_ones(1)
        repeats = -(-count // values.numel())
        return values.repeat(repeats)[:count].reshape(sizes)

    changed = _map_tensors(call, resized)
    arguments = tuple(
        [new.get(size, size) for size in value]
        if isinstance(value, (list, tuple)) and "SymInt[]" in str(declared.real_type) and _are_integers(value)
        else value
        for value, declared in zip(changed.arguments, call.operator._schema.arguments, strict=True)
    )
    return replace(call, arguments=arguments)


def _are_integers(value: Any) -> bool:
    return all(type(number) is int for number in value)


def _dtypes(call: OperatorCall, generator: random.Random) -> OperatorCall:
    """Change the element type of all tensors of one type."""
    tensors = [tensor for tensor in tree_leaves(call.arguments) if isinstance(tensor, torch.Tensor)]
    if not tensors:
        return call
    old = generator.choice(tensors).dtype
    new = generator.choice(DTYPES)
    return _map_tensors(call, lambda tensor: _cast(tensor, new) if tensor.dtype == old else tensor)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (tensor.real if tensor.is_complex() and not dtype.is_complex else tensor).to(dtype)


def _numbers(call: OperatorCall, generator: random.Random) -> OperatorCall:
    """Replace one number: by a small number, or one at or beyond the end of a type."""
    places = [
        place
        for place, (value, declared) in enumerate(zip(call.arguments, call.operator._schema.arguments, strict=True))
        if str(declared.type) in _NUMBERS and isinstance(value, (int, float))
    ]
    if not places:
        return call
    number = generator.choice(
        [0, 1, -1, 2, 3, 127, 128, 255, 256, 32768, 2**31, 2**40, 0.5, -0.0, 1.5, 65504.0, 1e30, float("inf")]
    )
    place = generator.choice(places)
    return replace(call, arguments=(*call.arguments[:place], number, *call.arguments[place + 1 :]))


_NUMBERS = ("number", "Optional[number]")


def _wrong(call: OperatorCall, generator: random.Random) -> OperatorCall:
    """Apply one change of the matrix of refusals."""
    changes = list(changes_of(call))
    return generator.choice(changes).call if changes else call


def _layouts(call: OperatorCall, generator: random.Random) -> OperatorCall:
    written = frozenset(
        place
        for place, declared in enumerate(call.operator._schema.arguments)
        if declared.alias_info is not None and declared.alias_info.is_write
    )
    return replace(call, arguments=place_all(call.arguments, generator, written))


# In the order in which they are made.
PROBABILITIES = {"values": 0.9, "sizes": 0.7, "dtypes": 0.3, "numbers": 0.25, "wrong": 0.15}
KINDS: dict[str, Callable[[OperatorCall, random.Random], OperatorCall]] = {
    "values": _values,
    "sizes": _sizes,
    "dtypes": _dtypes,
    "numbers": _numbers,
    "wrong": _wrong,
    "layouts": _layouts,
}
