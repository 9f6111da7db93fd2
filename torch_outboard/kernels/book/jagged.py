# SPDX-License-Identifier: BSD-3-Clause
"""Rows of different lengths, packed one after the other or padded to the longest. Offsets mark the rows' starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.row import Operator

__all__ = ["OPERATORS"]


def _to_padded(
    values: torch.Tensor, offsets: Sequence[torch.Tensor], max_lengths: Sequence[Any], padding_value: float = 0.0
) -> torch.Tensor:
    (ends,), (longest,) = offsets, max_lengths
    place = ends[:-1, None] + torch.arange(longest, device=values.device)
    is_filled = place < ends[1:, None]
    padding = torch.full((), padding_value, dtype=values.dtype, device=values.device)
    if values.shape[0] == 0:
        return padding.expand(*place.shape, values.shape[1]).clone()
    return torch.where(is_filled[:, :, None], values[torch.where(is_filled, place, 0)], padding)


def _to_jagged(dense: torch.Tensor, offsets: Sequence[torch.Tensor], total_L: Any = None) -> torch.Tensor:
    (ends,) = offsets
    name = "_padded_dense_to_jagged_forward()"
    torch.ops.aten._assert_async.msg(ends[-1] == total_L, f"{name}: final offset should match total_L value")
    is_padded = (ends.diff() <= dense.shape[1]).all()
    torch.ops.aten._assert_async.msg(is_padded, f"{name}: found batch item longer than the padded input")
    if dense.numel() == 0:
        return dense.new_zeros((total_L, dense.shape[2]))
    number = torch.arange(total_L, device=dense.device)
    row = (number[:, None] >= ends[None, 1:]).sum(1).clamp(max=dense.shape[0] - 1)
    return dense[row, (number - ends[row]).clamp(0, dense.shape[1] - 1)]


OPERATORS = (
    Operator("aten::_jagged_to_padded_dense_forward", guarded=("max_lengths",)),
    Operator("aten::_jagged_to_padded_dense_forward.default", decomposition=_to_padded),
    Operator("aten::_padded_dense_to_jagged_forward", guarded=("total_L",), facts=Facts(checked_values="values")),
    Operator("aten::_padded_dense_to_jagged_forward.default", decomposition=_to_jagged),
)
