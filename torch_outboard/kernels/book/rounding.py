# SPDX-License-Identifier: BSD-3-Clause
"""Where the CPU's kernels round halves; generated kernels compute them in float."""

from __future__ import annotations

import torch

from torch_outboard.codegen.dialects.dialect import HALVES
from torch_outboard.kernels.book.row import RefusalReason

__all__ = ["ROUNDED_BETWEEN", "rounded", "widened"]

# The results differ from the CPU's by more than torch's tests allow.
ROUNDED_BETWEEN = RefusalReason(
    "for half and bfloat16, the decomposition rounds where the CPU kernel doesn't [rounding]", HALVES
)


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Round halves, which kernels compute in float, to their own type."""
    return tensor.view(torch.int16).view(tensor.dtype)


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Convert halves to float, the type in which kernels compute them."""
    return tensor.float() if tensor.dtype in HALVES else tensor
