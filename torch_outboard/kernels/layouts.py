# SPDX-License-Identifier: BSD-3-Clause
"""Returning results in the memory order that an operator's meta kernel reports, if the decomposition's differs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._subclasses import FakeTensorMode

from torch_outboard.kernels import route

__all__ = ["as_laid_out", "lay_out_results"]


def as_laid_out(result: torch.Tensor, place: int, strides: Sequence[Sequence[int] | None]) -> torch.Tensor:
    """Return the result at `place` in the dimension order of its `strides`, copied if its own order differs."""
    order = _order_of(result, place, strides)
    if order is None:
        return result
    back = [order.index(dim) for dim in range(len(order))]
    route.add_decision("the result", "copied to the meta kernel's layout", as_laid_out)
    laid_out = torch.empty([result.shape[dim] for dim in order], dtype=result.dtype, device=result.device)
    return laid_out.copy_(result.permute(order)).permute(back)


def lay_out_results(graph: torch.fx.Graph, fake_mode: FakeTensorMode, strides: Sequence[Sequence[int] | None]) -> None:
    """Rearrange the results of a decomposed graph to the dimension order of their `strides`.

    The operators of a decomposition may return another layout than the meta kernel reports.
    """
    output = graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    for place, node in enumerate(results):
        if not isinstance(node, torch.fx.Node) or node.meta["val"].is_complex():
            continue
        order = _order_of(node.meta["val"], place, strides)
        if order is not None:
            wanted = strides[place]
            with graph.inserting_before(output):
                operator = torch.ops.prims.inductor_force_stride_order.default
                results[place] = graph.call_function(operator, (node, list(wanted or ())))
            with fake_mode:
                back = [order.index(dim) for dim in range(len(order))]
                laid_out = node.meta["val"].permute(order).contiguous().permute(back)
            results[place].meta["val"] = laid_out
    output.args = (tuple(results),)


def _order_of(result: torch.Tensor, place: int, strides: Sequence[Sequence[int] | None]) -> list[int] | None:
    """Return the dimensions in the order of the strides at `place`, or None if the result has this order or gaps."""
    wanted = strides[place] if place < len(strides) else None
    sizes = [_known(size) for size in result.shape]
    if wanted is None or len(wanted) != len(sizes) or _are_alike(sizes, [*map(_known, result.stride())], wanted):
        return None
    order = sorted(range(len(sizes)), key=lambda dim: -wanted[dim])
    return order if _is_dense([sizes[dim] for dim in order], [wanted[dim] for dim in order]) else None


def _known(number: int | torch.SymInt) -> int:
    """Return a number's value in the traced call, without adding a guard."""
    if isinstance(number, int):
        return number
    hint: int = number.node.hint
    return hint


def _are_alike(sizes: Sequence[int], first: Sequence[int], second: Sequence[int]) -> bool:
    is_alike = all(size == 1 or stride == wanted for size, stride, wanted in zip(sizes, first, second, strict=True))
    return is_alike or 0 in sizes


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
