# SPDX-License-Identifier: BSD-3-Clause
"""Operators over lists that reduce each tensor: the function of an element, and how elements are joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_outboard.codegen.chunk_joins import Join
from torch_outboard.codegen.kernel.reduction import accumulated_in
from torch_outboard.kernels.lists import Single, changed
from torch_outboard.kernels.operators import base_name
from torch_outboard.kernels.refusal import Refusal

__all__ = ["reduction_of"]


def reduction_of(name: str, arguments: Sequence[Any]) -> tuple[Single, Join] | None:
    """Return the function of an element and the join, for an operator over lists that reduces each tensor.

    Returns None for an operator that does not reduce. Raises Refusal for orders and types without kernels.
    """
    base = base_name(name)
    if base not in ("aten::_foreach_max", "aten::_foreach_norm", "aten::_foreach_powsum"):
        return None
    dtype = arguments[0][0].dtype
    if base == "aten::_foreach_max":
        kept = torch.int64 if dtype == torch.bool else accumulated_in(dtype)
        return Single(lambda x: [changed(x, kept)], (0,)), Join("max", kept, dtype, needs_elements=True)
    _, order, wanted = arguments
    result = dtype if wanted is None else wanted
    if not dtype.is_floating_point or torch.promote_types(dtype, result) != result:
        raise Refusal("its tensors, or its result, are of a type that the CPU's kernels refuse")
    kept, is_norm = accumulated_in(result), base == "aten::_foreach_norm"
    if order == 0:
        return Single(lambda x: [(x != 0).to(kept)], (0,)), Join("sum", kept, result)
    if order == 1:
        return Single(lambda x: [changed(x, kept).abs()], (0,)), Join("sum", kept, result)
    if order == 2:
        return Single(lambda x: [changed(x, kept).square()], (0,)), Join("sum", kept, result, has_root=is_norm)
    if order == float("inf") and is_norm:
        return Single(lambda x: [changed(x, kept).abs()], (0,)), Join("max", kept, result, needs_elements=True)
    raise Refusal(f"its order is {order}")
