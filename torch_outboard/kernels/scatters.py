# SPDX-License-Identifier: BSD-3-Clause
"""Scattered values, sorted by their targets: in deterministic mode, and if there are no atomics for the operation.

Otherwise Inductor's lowerings scatter, by atomics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_outboard.codegen.dialects.dialect import SUFFIXES
from torch_outboard.compile.generators import generators
from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates.segments import combined

__all__ = ["checked_index", "decompositions"]


# Types to which devices add atomically. Inductor leaves sums of other types to a library.
_ADDED_ATOMICALLY = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32)


def decompositions(known: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of operators that scatter; `known` are their alternatives."""
    aten = torch.ops.aten
    bodies: dict[Any, Callable[..., Any]] = {
        aten._unsafe_index_put.default: _index_put,
        aten._unsafe_masked_index_put_accumulate.default: _masked_index_put,
        aten.index_put.default: _index_put,
        aten.scatter.reduce: _scatter_and_reduce,
        aten.scatter.src: _scatter,
        aten.scatter.value: _scatter,
        aten.scatter.value_reduce: _scatter_and_reduce,
        aten.scatter_add.default: _scatter_add,
        aten.scatter_reduce.two: _scatter_reduce,
    }
    return {op: _or_else(body, known.get(op)) for op, body in bodies.items()}


def _or_else(body: Callable[..., Any], known: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a function that calls `body`, or `known` if `body` declines."""

    def decomposition(*given: Any, **named: Any) -> Any:
        result = body(*given, **named)
        return known(*given, **named) if result is NotImplemented and known is not None else result

    return decomposition


def _is_sorted(self: torch.Tensor, kind: str) -> bool:
    if torch.are_deterministic_algorithms_enabled() or kind not in ("set", "sum"):
        return True
    return kind == "sum" and (self.dtype not in _ADDED_ATOMICALLY or SUFFIXES[self.dtype] not in _atomics())


def _atomics() -> frozenset[str]:
    dialect = generators().eager().dialect  # type: ignore[attr-defined]
    return dialect.atomics  # type: ignore[no-any-return]


def _leaves_to_library(self: torch.Tensor, src: Any) -> bool:
    """Return True if Inductor leaves such writes to a library's scatter, which a plan cannot call."""
    from torch._inductor.utils import use_scatter_fallback

    if not isinstance(src, torch.Tensor):
        return False
    return use_scatter_fallback(torch.ops.aten.scatter_.src, None, self.dtype, src.dtype, src.device.type, True)


def _combined(
    base: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, kind: str, *, include_self: bool = True
) -> torch.Tensor:
    """Combine the rows of a matrix with the rows of `base` that `rows` names."""
    if rows.shape[0] == 0:
        return base
    ordered, order = torch.ops.aten.sort.stable(rows, stable=True, dim=0, descending=False)
    result: torch.Tensor = combined(base, ordered, order, values, kind, include_self)
    return result


def checked_index(index: torch.Tensor, size: Any, *, may_be_negative: bool) -> torch.Tensor:
    """Return an index's places along a dimension, read from a tensor, so that a place outside is an error."""
    along = torch.arange(size, device=index.device)
    return along[index] if may_be_negative else along.gather(0, index.flatten()).reshape(index.shape)


# Along a dimension.


def _scatter(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: Any, kind: str = "set", *, include_self: bool = True
) -> Any:
    if index.numel() == 0:
        return self.clone()
    if include_self and not _is_sorted(self, kind) and not (kind == "set" and _leaves_to_library(self, src)):
        return NotImplemented
    if self.dim() == 0 or index.dim() == 0:
        values = src if not isinstance(src, torch.Tensor) else src.reshape(-1)
        rows = _scatter(self.reshape(-1), 0, index.reshape(-1), values, kind, include_self=include_self)
        return rows.reshape(self.shape)
    if isinstance(src, torch.Tensor):
        if src.dtype != self.dtype:
            raise Refusal("its tensors have several types")
        values = src[tuple(slice(0, size) for size in index.shape)]
    else:
        values = self.new_full((), src).expand(index.shape)
    dim %= self.dim()
    place, step = torch.zeros_like(index, memory_format=torch.contiguous_format), 1
    for number in reversed(range(self.dim())):
        if number == dim:
            along = checked_index(index, self.shape[number], may_be_negative=False)
        else:
            shape = [-1 if one == number else 1 for one in range(self.dim())]
            along = torch.arange(index.shape[number], device=self.device).reshape(shape)
        place = place + along * step
        step = step * self.shape[number]
    result = _combined(self.reshape(-1, 1), place.reshape(-1), values.reshape(-1, 1), kind, include_self=include_self)
    return result.reshape(self.shape)


def _scatter_add(self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Any:
    return _scatter(self, dim, index, src, "sum")


def _scatter_and_reduce(self: torch.Tensor, dim: int, index: torch.Tensor, src: Any, *, reduce: str) -> Any:
    return _scatter(self, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


def _scatter_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    return _scatter(self, dim, index, src, reduce, include_self=include_self)


# By tensors of indices.


def _index_put(
    self: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> Any:
    kind = "sum" if accumulate else "set"
    if not _is_sorted(self, kind):
        return NotImplemented
    given = [(number, one) for number, one in enumerate(indices) if one is not None]
    if any(one.dtype == torch.bool for _, one in given):
        raise Refusal("it writes by a mask")
    if values.dtype != self.dtype:
        raise Refusal("its tensors have several types")
    indexed = [number for number, _ in given]
    others = [number for number in range(self.dim()) if number not in indexed]
    broadcast = torch.broadcast_tensors(*(one for _, one in given))  # type: ignore[no-untyped-call]
    shape, rest = broadcast[0].shape, [self.shape[number] for number in others]

    # Values have the shape that the indices read. The indices' own shape takes their place if they are adjacent, else
    # the front.
    in_front = indexed[0] if indexed[-1] - indexed[0] + 1 == len(indexed) else 0
    values = values.expand([*rest[:in_front], *shape, *rest[in_front:]])
    places = range(in_front, in_front + len(shape))
    values = values.movedim(tuple(places), tuple(range(len(shape))))

    place, step = torch.zeros_like(broadcast[0], dtype=torch.int64, memory_format=torch.contiguous_format), 1
    for number, index in zip(reversed(indexed), reversed(broadcast), strict=True):
        place = place + checked_index(index, self.shape[number], may_be_negative=True) * step
        step = step * self.shape[number]
    order = [*indexed, *others]
    columns = math.prod(rest)
    base = self.permute(order)
    result = _combined(
        base.reshape(-1, columns),
        place.reshape(-1),
        values.reshape(-1, columns),
        kind,
    )
    back = [order.index(number) for number in range(self.dim())]
    result = result.reshape(base.shape).permute(back)
    return result if result.stride() == self.stride() else torch.empty_like(self).copy_(result)


def _masked_index_put(
    self: torch.Tensor, mask: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor
) -> Any:
    """Add values by indices; elements that the mask leaves out may have any index."""
    clamped = [
        None if one is None else one.clamp(-size, size - 1) for one, size in zip(indices, self.shape, strict=False)
    ]
    return _index_put(self, clamped, values.masked_fill(mask.logical_not(), 0), accumulate=True)
