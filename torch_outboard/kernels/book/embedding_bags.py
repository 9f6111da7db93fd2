# SPDX-License-Identifier: BSD-3-Clause
"""Bags of rows of a matrix, summed, averaged or maximized, and their gradients.

Bags follow the order of their indices, so the rows of a bag form a segment (kernels/templates/segments.py).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.indexing import checked_index
from torch_outboard.kernels.book.rounding import widened
from torch_outboard.kernels.book.row import Operator

__all__ = ["OPERATORS"]

_SUM, _MEAN, _MAX = range(3)
_KINDS = ("sum", "mean", "amax")
_HAS_LAST = 4  # position of include_last_offset after the offsets


@functools.cache
def _sums_bfloat16_fast() -> bool:
    """Return True if torch's kernel leaves offset2bag empty for bfloat16 sums."""
    with _disable_current_modes():
        index = torch.zeros(1, dtype=torch.int64)
        weight = torch.zeros(1, 1, dtype=torch.bfloat16)
        bags: torch.Tensor = torch.ops.aten._embedding_bag_forward_only(weight, index, index)[1]
        return bags.numel() == 0


def _is_fast_sum(weight: torch.Tensor, mode: int, scale: torch.Tensor | None, padding: int) -> bool:
    """Return True if the CPU's kernel leaves offset2bag empty."""
    if mode != _SUM or weight.stride(1) != 1 or padding >= 0 or (scale is not None and scale.stride(0) != 1):
        return False
    return weight.dtype in (torch.float32, torch.float16) or (weight.dtype == torch.bfloat16 and _sums_bfloat16_fast())


def _bags_of(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return the bag of each index: the last bag that begins at or before it."""
    number = torch.arange(indices.shape[0], device=indices.device)
    return torch.searchsorted(offsets.long(), number, right=True) - 1


def _check_offsets(_: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *others: Any) -> None:
    is_right = (offsets[:1] == 0).all() & (offsets[1:] >= offsets[:-1]).all() & (offsets <= indices.shape[0]).all()
    text = "embedding_bag: offsets must begin with 0, ascend, and be at most the number of indices"
    if len(others) > _HAS_LAST and others[_HAS_LAST]:  # defaults at the end are left out
        is_right = is_right & (offsets[-1:] == indices.shape[0]).all()
        text += "; include_last_offset makes the last of them the number of indices"
    torch.ops.aten._assert_async.msg(is_right, text)


def _check_bags(
    grad: torch.Tensor,
    _: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    *__: Any,
) -> None:
    if offset2bag.shape[0] != indices.shape[0]:  # then compute the bags from the offsets
        _check_offsets(grad, indices, offsets)


def _forward(has_gradients: bool) -> Any:
    def body(
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        scale_grad_by_freq: bool = False,
        mode: int = _SUM,
        sparse: bool = False,
        per_sample_weights: torch.Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int = -1,
    ) -> tuple[torch.Tensor, ...]:
        kind = torch.promote_types(indices.dtype, offsets.dtype)
        begins = offsets[:-1] if include_last_offset else offsets
        bags = _bags_of(indices, begins)
        places = checked_index(indices.long(), weight.shape[0], may_be_negative=False)
        is_kept = None if padding_idx < 0 else places != padding_idx
        count = begins.shape[0]
        output = _combined_rows(weight, places, bags, count, mode, per_sample_weights, is_kept)

        is_fast = _is_fast_sum(weight, mode, per_sample_weights, padding_idx)
        offset2bag = bags.to(kind) if not is_fast else bags.new_empty(0, dtype=kind)
        unread = 0 if has_gradients or mode != _SUM else offsets.shape[0] - count
        sizes = bags.new_zeros(count) if mode == _SUM else _sizes(bags, count, is_kept)  # sums need none
        bag_size = torch.nn.functional.pad(sizes, (0, unread)).to(kind)
        if mode != _MAX:
            return output, offset2bag, bag_size, bag_size.clone()
        return output, offset2bag, bag_size, _largest(weight, output, places, bags, is_kept).to(kind)

    return body


def _combined_rows(
    weight: torch.Tensor,
    places: torch.Tensor,
    bags: torch.Tensor,
    count: Any,
    mode: int,
    scale: torch.Tensor | None,
    is_kept: torch.Tensor | None,
) -> torch.Tensor:
    from torch_outboard.kernels.templates.segments import combined

    base = weight.new_zeros(count, weight.shape[1])
    if places.shape[0] == 0:
        return base
    if scale is None and is_kept is None:
        return combined(base, bags, places, weight, _KINDS[mode], False)  # type: ignore[no-any-return]
    rows = widened(weight[places])
    if scale is not None:
        rows = rows * scale.to(rows.dtype)[:, None]
    if is_kept is not None:
        rows = torch.where(is_kept[:, None], rows, -math.inf if mode == _MAX else 0)
    number = torch.arange(places.shape[0], device=places.device)
    result = combined(base.to(rows.dtype), bags, number, rows, "amax" if mode == _MAX else "sum", False)
    if is_kept is not None and mode != _SUM:
        sizes = _sizes(bags, count, is_kept)[:, None]
        result = torch.where(sizes == 0, 0, result if mode == _MAX else result / sizes)
    return result.to(weight.dtype)  # type: ignore[no-any-return]


def _sizes(bags: torch.Tensor, count: Any, is_kept: torch.Tensor | None) -> torch.Tensor:
    """Return how many rows of each bag are kept."""
    ones = torch.ones_like(bags) if is_kept is None else is_kept.to(torch.int64)
    return bags.new_zeros(count).scatter_add(0, bags, ones)


def _largest(
    weight: torch.Tensor, output: torch.Tensor, places: torch.Tensor, bags: torch.Tensor, is_kept: torch.Tensor | None
) -> torch.Tensor:
    """Return the source row of each maximum, the first of equal ones; 0 for an empty bag."""
    from torch_outboard.kernels.templates.segments import combined

    if places.shape[0] == 0:
        return torch.zeros_like(output, dtype=torch.int64)
    number = torch.arange(places.shape[0], device=places.device)
    is_largest = weight[places] == output[bags]
    if is_kept is not None:
        is_largest = is_largest & is_kept[:, None]
    behind = places.shape[0]
    first = torch.where(is_largest, number[:, None], behind)
    base = torch.full_like(output, behind, dtype=torch.int64)
    lowest = combined(base, bags, number, first, "amin", False)
    is_there = lowest < behind
    return torch.where(is_there, places[torch.where(is_there, lowest, 0)], 0)


def _dense_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: Any,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> Any:
    # Up to torch 2.15, the CPU's kernel divides by the count of the wrong index.
    if scale_grad_by_freq and mode != _MAX:
        return NotImplemented
    result = grad.new_zeros(num_weights, grad.shape[1])
    if mode == _MAX:
        kept = torch.where(bag_size[:, None] > 0, grad, 0)
        return result.scatter_add(0, maximum_indices.long(), kept)
    if indices.shape[0] == 0:
        return result
    places, bags = indices.long(), offset2bag.long()
    factor = torch.ones(indices.shape, dtype=widened(grad).dtype, device=grad.device)
    if per_sample_weights is not None:
        factor = factor * per_sample_weights
    if mode == _MEAN:
        factor = factor / bag_size[bags]
    if padding_idx >= 0:
        factor = torch.where(places == padding_idx, 0, factor)
    rows = (grad[bags] * factor[:, None]).to(grad.dtype)
    return result.index_add(0, places, rows)


def _weights_backward(
    grad: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    mode: int,
    padding_idx: int = -1,
) -> torch.Tensor:
    bags = offset2bag.long() if offset2bag.shape[0] == indices.shape[0] else _bags_of(indices, offsets)
    places = indices.long()
    products = (widened(grad)[bags] * widened(weight)[places]).sum(-1)
    if padding_idx >= 0:
        products = torch.where(places == padding_idx, 0, products)
    return products.to(grad.dtype)


OPERATORS = (
    Operator("aten::_embedding_bag", facts=Facts(correct="correct_embedding_bag", raises_runtime_error=True)),
    Operator("aten::_embedding_bag.default", decomposition=_forward(True), check=_check_offsets),
    Operator("aten::_embedding_bag_dense_backward.default", decomposition=_dense_backward),
    Operator(
        "aten::_embedding_bag_forward_only",
        facts=Facts(correct="correct_embedding_bag_forward_only", raises_runtime_error=True),
    ),
    Operator("aten::_embedding_bag_forward_only.default", decomposition=_forward(False), check=_check_offsets),
    Operator(
        "aten::_embedding_bag_per_sample_weights_backward.default", decomposition=_weights_backward, check=_check_bags
    ),
)
