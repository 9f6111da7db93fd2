# SPDX-License-Identifier: BSD-3-Clause
"""Copies in the order in which operators lay out their results."""

from __future__ import annotations

import torch
from torch._prims_common import suggest_memory_format

__all__ = ["dense", "in_order_of"]


def dense(given: torch.Tensor) -> torch.Tensor:
    """Return a copy without gaps, the last dimension fastest."""
    return torch.empty(given.shape, dtype=given.dtype, device=given.device).copy_(given)


def in_order_of(given: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """Return a copy in the order of the image's channels, as the CPU's kernels do and some meta kernels don't."""
    order = suggest_memory_format(image) if image.dim() in (4, 5) else torch.contiguous_format
    return torch.empty(given.shape, dtype=given.dtype, device=given.device, memory_format=order).copy_(given)
