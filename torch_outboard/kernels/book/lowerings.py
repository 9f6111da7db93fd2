# SPDX-License-Identifier: BSD-3-Clause
"""The package's own lowerings, which rows of the book name. This module imports Inductor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import (
    inductor_prims,  # noqa: F401  defines the operators for random draws
    ir,
    lowering,
)
from torch._inductor.virtualized import ops

__all__ = ["draw_integers", "draw_random", "gather", "in_memory", "power"]


def _draw(size: Sequence[Any], seed: ir.TensorBox, dtype: torch.dtype, number: Callable[[Any, Any], Any]) -> Any:
    """Return a tensor whose elements are a function of the seed and of the element's position."""
    device = seed.get_device_or_error()
    strides = ir.FlexibleLayout.contiguous_strides([*size])
    place_of = ir.FixedLayout(device, dtype, [*size], strides).make_indexer()
    load_seed = seed.make_loader()

    def element(index: Sequence[Any]) -> Any:
        return number(load_seed([]), ops.index_expr(place_of(index), torch.int64))

    return ir.Pointwise.create(device=device, dtype=dtype, inner_fn=element, ranges=[*size])


def draw_random(size: Sequence[Any], seed: ir.TensorBox, mode: str) -> Any:
    """Draw element by element, fused with the operations that use the drawn numbers.

    Inductor's own lowerings store the drawn numbers in memory, and number the elements in 32 bits.
    """
    return _draw(size, seed, torch.float32, getattr(ops, mode))


def draw_integers(low: int, high: int, size: Sequence[Any], seed: ir.TensorBox) -> Any:
    """Draw integers from [low, high), as `draw_random` does."""

    def number(seed: Any, place: Any) -> Any:
        return ops.randint64(seed, place, ops.constant(low, torch.int64), ops.constant(high, torch.int64))

    return _draw(size, seed, torch.int64, number)


def gather(self: ir.TensorBox, dim: int, index: ir.TensorBox, sparse_grad: bool = False) -> Any:
    """Read elements; a negative index is an error, as on the CPU. Before torch 2.13, Inductor wraps it."""
    sizes = list(self.get_size())
    dim = dim % len(sizes) if sizes else 0
    size = sizes[dim] if sizes else 1
    load, load_index = self.make_loader(), index.make_loader()

    def element(place: Sequence[Any]) -> Any:
        position = ops.indirect_indexing(load_index(place), size, wrap_neg=False)
        return load([*place[:dim], position, *place[dim + 1 :]] if sizes else [])

    return ir.Pointwise.create(
        device=self.get_device_or_error(), dtype=self.get_dtype(), inner_fn=element, ranges=index.get_size()
    )


def power(self: ir.TensorBox, exponent: ir.TensorBox) -> Any:
    """Raise to a power. Inductor leaves integer powers to a library; here the base is squared for each bit."""
    common = torch.promote_types(self.get_dtype(), exponent.get_dtype())
    if common.is_floating_point or common == torch.bool:
        return lowering.lowerings[torch.ops.aten.pow.Tensor_Tensor](self, exponent)
    converted = [lowering.to_dtype(operand, common) for operand in (self, exponent)]
    return lowering.make_pointwise(functools.partial(_integer_power, common))(*lowering.broadcast_tensors(*converted))


def _integer_power(dtype: torch.dtype, base: Any, exponent: Any) -> Any:
    def number(value: int) -> Any:
        return ops.constant(value, dtype)

    def is_odd(value: Any) -> Any:
        return ops.ne(ops.bitwise_and(value, number(1)), number(0))

    result, power, remaining = number(1), base, exponent
    for _ in range(torch.iinfo(dtype).bits):
        result = ops.where(is_odd(remaining), ops.mul(result, power), result)
        power, remaining = ops.mul(power, power), ops.bitwise_right_shift(remaining, number(1))
    if not dtype.is_signed:
        return result
    of_minus_one = ops.where(is_odd(exponent), number(-1), number(1))
    inverse = ops.where(
        ops.eq(base, number(-1)), of_minus_one, ops.where(ops.eq(base, number(1)), number(1), number(0))
    )
    return ops.where(ops.lt(exponent, number(0)), inverse, result)


def in_memory(self: ir.TensorBox) -> ir.TensorBox:
    """Store a tensor that is read often, in its own kernel.

    Inductor recomputes a tensor that depends on no other tensor wherever it is read, except through a view.
    """
    self.realize()
    storage, layout = ir.as_storage_and_layout(self, freeze=True)
    return ir.TensorBox(ir.ReinterpretView(data=storage, layout=layout))
