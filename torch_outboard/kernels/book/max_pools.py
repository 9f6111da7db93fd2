# SPDX-License-Identifier: BSD-3-Clause
"""The lowering of max pooling, which rows of the book name. This module imports Inductor.

Inductor's own lowering reads each window twice. If no element is larger than the padding, it returns an index into the
padding. Of several NaNs it selects the first, where the CPU selects the last.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import ir
from torch._inductor.virtualized import V, ops

from torch_outboard.codegen.formula import expression_of
from torch_outboard.kernels.book.pooling import per_dimension

__all__ = ["max_pool2d", "max_pool3d"]

_MAX_UNROLLED_WINDOW = 32  # elements in a window that is pooled along all dimensions at once


class _Side(NamedTuple):
    """Pooling along one dimension: the sizes of the image and the result, and the layout of windows."""

    size: Any
    count: Any
    window: int
    stride: int
    padding: int
    dilation: int
    step: Any  # the stride of this dimension in an index into the image
    reaches_out: bool  # windows may extend past the end


class _Element(NamedTuple):
    """An element of a window: its position, whether it is inside, and whether no earlier element is, by dimension."""

    places: list[Any]
    is_inside: list[Any]
    is_first: list[Any] | None  # None: never the first


def _max_pool(
    dims: int,
    self: ir.TensorBox,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[ir.TensorBox, ir.TensorBox]:
    """Return the largest elements of windows and their indices. Large windows are pooled along one side at a time."""
    windows, strides, paddings, dilations = (
        per_dimension(values, dims) for values in (kernel_size, stride or kernel_size, padding, dilation)
    )
    sizes, counts = self.get_size()[-dims:], _result_sizes()[-dims:]
    sides = {}
    for at in range(dims):
        lies = windows[at], strides[at], paddings[at], dilations[at]
        step = math.prod(sizes[at + 1 :], start=sympy.S.One)
        sides[at - dims] = _Side(sizes[at], counts[at], *lies, step, ceil_mode or paddings[at] > 0)
    if math.prod(windows) <= _MAX_UNROLLED_WINDOW:
        return _pool(self, None, sides)
    values, indices = self, None
    for number in reversed(sides):
        values, indices = _pool(values, indices, {number: sides[number]})
        values.realize(), indices.realize()
    assert indices is not None
    return values, indices


max_pool2d = functools.partial(_max_pool, 2)
max_pool3d = functools.partial(_max_pool, 3)


def _result_sizes() -> list[Any]:
    values, _ = V.graph.current_node.meta["val"]
    return [expression_of(size) for size in values.shape]


def _pool(
    self: ir.TensorBox, indices: ir.TensorBox | None, sides: Mapping[int, _Side]
) -> tuple[ir.TensorBox, ir.TensorBox]:
    """Pool along some sides. `indices` belong to the elements already found along other sides."""
    load, load_index = self.make_loader(), indices and indices.make_loader()
    dtype = self.get_dtype()
    least = -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min
    ranges = list(self.get_size())
    for number, side in sides.items():
        ranges[number] = side.count

    def largest(place: Sequence[Any]) -> tuple[Any, Any]:
        best, index = ops.constant(least, dtype), ops.constant(0, torch.int64)
        for element in _elements(place, sides):
            at = sum((element.places[number] * side.step for number, side in sides.items()), start=sympy.S.Zero)
            value = _read(load, element, least)
            here = ops.index_expr(at, torch.int64)
            if load_index is not None:
                here = ops.add(here, _read(load_index, element, 0))
            is_taken = ops.gt(value, best)
            if dtype.is_floating_point:
                is_taken = ops.logical_or(is_taken, ops.isnan(value))
            if element.is_first is not None:
                is_first = _all([*element.is_inside, *element.is_first])
                is_taken = ops.logical_or(is_taken, is_first) if is_first is not None else is_first
            if is_taken is None:
                best, index = value, here
            else:
                best, index = ops.where(is_taken, value, best), ops.where(is_taken, here, index)
        return best, index

    create = functools.partial(ir.Pointwise.create, device=self.get_device_or_error(), ranges=ranges)
    return (
        create(dtype=dtype, inner_fn=lambda place: largest(place)[0]),
        create(dtype=torch.int64, inner_fn=lambda place: largest(place)[1]),
    )


def _elements(place: Sequence[Any], sides: Mapping[int, _Side]) -> Iterator[_Element]:
    """Yield the elements of one result's window, in the order of the CPU's kernels."""

    def compared(first: Any, second: Any) -> Any:
        return ops.lt(ops.index_expr(first, torch.int64), ops.index_expr(second, torch.int64))

    for offsets in itertools.product(*(range(side.window) for side in sides.values())):
        places, is_inside, is_first = list(place), [], []
        may_be_first = True
        for offset, (number, side) in zip(offsets, sides.items(), strict=True):
            before = offset * side.dilation
            at = places[number] = place[number] * side.stride + before - side.padding
            if before < side.padding:
                is_inside.append(ops.logical_not(compared(at, sympy.S.Zero)))
            if side.reaches_out:
                is_inside.append(compared(at, side.size))
            may_be_first = may_be_first and before < side.padding + side.dilation
            if offset > 0:
                is_first.append(compared(at, sympy.Integer(side.dilation)))
        yield _Element(places, is_inside, is_first if may_be_first else None)


def _read(load: Any, element: _Element, outside: Any) -> Any:
    is_inside = _all(element.is_inside)
    return load(element.places) if is_inside is None else ops.masked(is_inside, lambda: load(element.places), outside)


def _all(conditions: Sequence[Any]) -> Any:
    return functools.reduce(ops.logical_and, conditions) if conditions else None
