# SPDX-License-Identifier: BSD-3-Clause
"""Concatenation, padding, rolling and slicing, and operators on storages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.row import Operator, RefusalReason
from torch_outboard.kernels.refusal import CallRefusal

__all__ = ["OPERATORS"]


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    """Convert to the common type first if types differ: empty rows are skipped, but take part in promotion."""
    common = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    if all(tensor.dtype == common for tensor in tensors):
        return NotImplemented
    non_empty = [tensor.to(common) for tensor in tensors if tensor.dim() != 1 or tensor.shape[0] != 0]
    return torch.ops.aten.cat.default(non_empty or [tensor.to(common) for tensor in tensors], dim)


def _copied(view: Any) -> Callable[..., Any]:
    """Return the decomposition of a view's copy. Inductor has no lowering for it, and would call the operator."""

    def copy(*args: Any, **named: Any) -> Any:
        result = view(*args, **named)
        if isinstance(result, torch.Tensor):
            return result.clone(memory_format=torch.contiguous_format)
        return [tensor.clone(memory_format=torch.contiguous_format) for tensor in result]

    return copy


def _check_shifts(_: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> None:
    if len(shifts) != len(dims) and not (len(shifts) == 1 and not dims):
        raise CallRefusal(f"there are {len(shifts)} shifts for {len(dims)} dimensions [wrong-call]")


OPERATORS = (
    Operator("aten::flip.default", facts=Facts(shape_rule="flip")),
    Operator("aten::select_copy.int", decomposition=_copied(torch.ops.aten.select.int)),
    Operator("aten::slice_copy.Tensor", decomposition=_copied(torch.ops.aten.slice.Tensor)),
    Operator("aten::split_copy.Tensor", decomposition=_copied(torch.ops.aten.split.Tensor)),
    Operator("aten::cat.default", decomposition=_cat, facts=Facts(is_composed_first=True, composed="cat_of_many")),
    Operator("aten::constant_pad_nd", guarded=("pad",)),
    Operator("aten::roll", guarded=("shifts",), facts=Facts(correct="correct_roll")),
    Operator("aten::roll.default", check=_check_shifts),
    Operator("aten::select_backward", guarded=("index",)),
    Operator("aten::slice_backward", guarded=("start", "end")),
    Operator("aten::tril aten::triu", guarded=("diagonal",), facts=Facts(checks_all_in_meta=True)),
    # These operators read sizes, strides and offsets of a storage, which graphs do not represent,
    # or allocate other memory.
    Operator(
        "aten::_pin_memory aten::_to_copy aten::as_strided aten::as_strided_copy aten::as_strided_scatter aten::resize "
        "aten::resize_as aten::resize_as_sparse aten::set",
        refused=RefusalReason("it works on storages, not on elements [no-definition]"),
    ),
)
