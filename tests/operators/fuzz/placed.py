# SPDX-License-Identifier: BSD-3-Clause
"""Tensors as windows of larger storages, which reveal a kernel that reads or writes beside its tensor."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

PAD = 8  # elements before and after what a tensor reaches

POISON = 12288.0  # what every type of reals holds exactly

LAYOUTS = ("plain", "offset", "reversed", "stepped", "expanded")


@dataclass(frozen=True)
class Placed:
    """A tensor as its whole storage, sizes, strides and the offset of its first element."""

    storage: torch.Tensor
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def on(self, device: torch.device, storages: list[torch.Tensor]) -> torch.Tensor:
        """Make the tensor on a device, and append its storage to `storages`."""
        storages.append(self.storage.to(device, copy=True))
        return storages[-1].as_strided(self.sizes, self.strides, self.offset)


def placed(tensor: torch.Tensor, layout: str) -> Placed:
    """Copy a tensor into a separate storage, in the given layout, among elements that no right result contains."""
    if layout == "expanded" and tensor.dim() and tensor.size(0) > 1:
        row = placed(tensor[0], "offset")
        return Placed(row.storage, (tensor.size(0), *row.sizes), (0, *row.strides), row.offset)
    order = list(range(tensor.dim()))
    step, pad = 1, PAD
    if layout == "plain":
        pad = 0
    elif layout == "reversed":
        order.reverse()
    elif layout == "stepped":
        step = 2
    strides = [0] * tensor.dim()
    stride = step
    for dim in reversed(order):
        strides[dim] = stride
        stride *= max(tensor.size(dim), 1)
    reached = 1 + sum((max(size, 1) - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    storage = poison(reached + 2 * pad, tensor.dtype)
    window = storage.as_strided(tensor.shape, strides, pad)
    window.copy_(tensor)
    return Placed(storage, tuple(tensor.shape), tuple(strides), pad)


def poison(length: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.ones(length, dtype=dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full((length,), POISON, dtype=torch.float32).to(dtype)
    return torch.full((length,), 113, dtype=dtype)


def place_all(arguments: tuple[Any, ...], generator: random.Random | None, written: frozenset[int]) -> tuple[Any, ...]:
    """Give each tensor of the arguments a layout; without a generator, give all of them the plain one.

    Tensors at the places in `written` have no element twice.
    """

    def lay_out(place: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if generator is None:
            return placed(value, "plain")
        layout = generator.choice(LAYOUTS[:-1] if place in written else LAYOUTS)
        return placed(value, layout if generator.random() < 0.6 else "plain")

    return tuple(tree_map(lambda x, place=place: lay_out(place, x), value) for place, value in enumerate(arguments))
