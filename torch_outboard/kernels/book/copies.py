# SPDX-License-Identifier: BSD-3-Clause
"""Copies: into the memory order of an operator's results, and of values that kernels read often."""

from __future__ import annotations

import torch
from torch._prims_common import suggest_memory_format

from torch_outboard.kernels.book.row import Operator

__all__ = ["OPERATORS", "dense", "in_memory", "in_order_of"]

_library = torch.library.Library("outboard", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("in_memory(Tensor self) -> Tensor")  # type: ignore[no-untyped-call]
_library.impl("in_memory", torch.clone, "Meta")  # type: ignore[no-untyped-call]

# Stores a tensor with its own kernel, so that its readers do not compute it again.
in_memory = torch.ops.outboard.in_memory.default


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy without gaps, with the last dimension fastest."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def in_order_of(tensor: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """Return a copy in the memory order of the image, as the CPU's kernels do and some meta kernels do not."""
    order = suggest_memory_format(image) if image.dim() in (4, 5) else torch.contiguous_format
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device, memory_format=order).copy_(tensor)


OPERATORS = (Operator("outboard::in_memory.default", lowering="lowerings:in_memory"),)
