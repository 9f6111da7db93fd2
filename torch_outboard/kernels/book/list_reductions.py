# SPDX-License-Identifier: BSD-3-Clause
"""Operators over lists that reduce each tensor: the function applied to an element, and how the results are combined.

Rows of lists.py name these functions. They take the operator's arguments, and raise Refusal for a norm's order or a
type that has no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_outboard.codegen.chunk_joins import Join
from torch_outboard.codegen.kernel.reduction import accumulated_in
from torch_outboard.kernels.book.lists import changed
from torch_outboard.kernels.refusal import ClassRefusal

__all__ = ["greatest", "norm", "power_sum"]

_Reduction = tuple[Callable[[torch.Tensor], list[torch.Tensor]], Join]


def greatest(arguments: Sequence[Any]) -> _Reduction:
    dtype = arguments[0][0].dtype
    kept = torch.int64 if dtype == torch.bool else accumulated_in(dtype)
    return lambda x: [changed(x, kept)], Join("max", kept, dtype, needs_elements=True)


def norm(arguments: Sequence[Any]) -> _Reduction:
    return _of_order(arguments, is_norm=True)


def power_sum(arguments: Sequence[Any]) -> _Reduction:
    return _of_order(arguments, is_norm=False)


def _of_order(arguments: Sequence[Any], is_norm: bool) -> _Reduction:
    lists, order, wanted = arguments
    dtype = lists[0].dtype
    result = dtype if wanted is None else wanted
    if not dtype.is_floating_point or torch.promote_types(dtype, result) != result:
        raise ClassRefusal("the CPU kernel rejects the dtype of its tensors or of its result [wrong-call]")
    kept = accumulated_in(result)
    if order == 0:
        return lambda x: [(x != 0).to(kept)], Join("sum", kept, result)
    if order == 1:
        return lambda x: [changed(x, kept).abs()], Join("sum", kept, result)
    if order == 2:
        return lambda x: [changed(x, kept).square()], Join("sum", kept, result, has_root=is_norm)
    if order == float("inf") and is_norm:
        return lambda x: [changed(x, kept).abs()], Join("max", kept, result, needs_elements=True)
    raise ClassRefusal(f"norms of order {order} aren't supported [norm-order]")
