# SPDX-License-Identifier: BSD-3-Clause
"""Lowerings of random draws: element by element, fused with the operations on the drawn numbers.

Inductor's own lowerings store the drawn numbers in memory, and count elements in 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import inductor_prims, ir
from torch._inductor.virtualized import ops

__all__ = ["DRAWS"]


def _draw(size: Sequence[Any], seed: ir.TensorBox, dtype: torch.dtype, number: Callable[[Any, Any], Any]) -> Any:
    """Return a tensor of the numbers that a function returns for the seed and an element's place."""
    device = seed.get_device_or_error()
    strides = ir.FlexibleLayout.contiguous_strides([*size])
    place_of = ir.FixedLayout(device, dtype, [*size], strides).make_indexer()
    load_seed = seed.make_loader()

    def element(index: Sequence[Any]) -> Any:
        return number(load_seed([]), ops.index_expr(place_of(index), torch.int64))

    return ir.Pointwise.create(device=device, dtype=dtype, inner_fn=element, ranges=[*size])


def _random(size: Sequence[Any], seed: ir.TensorBox, mode: str) -> Any:
    return _draw(size, seed, torch.float32, getattr(ops, mode))


def _integers(low: int, high: int, size: Sequence[Any], seed: ir.TensorBox) -> Any:
    def number(seed: Any, place: Any) -> Any:
        return ops.randint64(seed, place, ops.constant(low, torch.int64), ops.constant(high, torch.int64))

    return _draw(size, seed, torch.int64, number)


DRAWS: dict[Any, Callable[..., Any]] = {inductor_prims.random: _random, inductor_prims.randint: _integers}
