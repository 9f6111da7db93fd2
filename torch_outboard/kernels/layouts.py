# SPDX-License-Identifier: BSD-3-Clause
"""Results in the memory order that an operator's meta kernel reports, if the decomposition's order differs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_outboard.kernels import route

__all__ = ["as_laid_out"]


def as_laid_out(result: torch.Tensor, place: int, strides: Sequence[Sequence[int] | None]) -> torch.Tensor:
    """Return the result at a place in the dimension order of its `strides`, copied if its own order differs."""
    wanted = strides[place] if place < len(strides) else None
    sizes = [_known(size) for size in result.shape]
    if wanted is None or len(wanted) != len(sizes) or _are_alike(sizes, [*map(_known, result.stride())], wanted):
        return result
    order = sorted(range(len(sizes)), key=lambda dim: -wanted[dim])
    if not _is_dense([sizes[dim] for dim in order], [wanted[dim] for dim in order]):
        return result
    back = [order.index(dim) for dim in range(len(order))]
    route.decided("the result", "copied to the meta kernel's layout", as_laid_out)
    laid_out = torch.empty([result.shape[dim] for dim in order], dtype=result.dtype, device=result.device)
    return laid_out.copy_(result.permute(order)).permute(back)


def _known(number: int | torch.SymInt) -> int:
    """Return a number's value in the traced call, without a guard."""
    if isinstance(number, int):
        return number
    hint: int = number.node.hint
    return hint


def _are_alike(sizes: Sequence[int], first: Sequence[int], second: Sequence[int]) -> bool:
    is_alike = all(size == 1 or one == other for size, one, other in zip(sizes, first, second, strict=True))
    return is_alike or 0 in sizes


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
