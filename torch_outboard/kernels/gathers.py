# SPDX-License-Identifier: BSD-3-Clause
"""The lowering of `gather` below torch 2.13, where Inductor's lowering counts a negative index from the end.

Eager `gather` refuses negative indices, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.virtualized import ops

__all__ = ["GATHERS"]


def _gather(self: ir.TensorBox, dim: int, index: ir.TensorBox, sparse_grad: bool = False) -> Any:
    sizes = list(self.get_size())
    dim = dim % len(sizes) if sizes else 0
    size = sizes[dim] if sizes else 1
    load, load_index = self.make_loader(), index.make_loader()

    def element(place: Sequence[Any]) -> Any:
        found = ops.indirect_indexing(load_index(place), size, wrap_neg=False)
        return load([*place[:dim], found, *place[dim + 1 :]] if sizes else [])

    return ir.Pointwise.create(
        device=self.get_device_or_error(), dtype=self.get_dtype(), inner_fn=element, ranges=index.get_size()
    )


GATHERS: dict[Any, Callable[..., Any]] = {} if torch.__version__ >= "2.13" else {torch.ops.aten.gather.default: _gather}
