# SPDX-License-Identifier: BSD-3-Clause
"""Products of matrices and convolutions, for which there are templates."""

from __future__ import annotations

from typing import Any

import torch

from torch_outboard.kernels.book.rounding import ROUNDED_BETWEEN
from torch_outboard.kernels.book.row import Operator

__all__ = ["OPERATORS"]


def _addbmm(self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Compute the sum of all products as one product, of matrices side by side."""
    left = batch1.transpose(0, 1).reshape(batch1.shape[1], -1)
    return torch.ops.aten.addmm.default(self, left, batch2.reshape(-1, batch2.shape[2]), beta=beta, alpha=alpha)


def _without_product(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """Leave out a product that counts 0 times: a NaN in it counts as little, as in the CPU's kernel."""
    if alpha != 0 or mat1.is_complex():
        return NotImplemented
    size = (mat1.shape[0], mat2.shape[1])
    return torch.zeros(size, dtype=mat1.dtype, device=mat1.device) if beta == 0 else (self * beta).expand(size).clone()


OPERATORS = (
    Operator("aten::addbmm.default", decomposition=_addbmm),
    Operator("aten::addmm.default", template="products:addmm", decomposition=_without_product),
    Operator("aten::addr", refused=ROUNDED_BETWEEN),
    Operator("aten::baddbmm.default", template="products:baddbmm"),
    Operator("aten::bmm.default", template="products:bmm"),
    Operator("aten::convolution.default", template="convolutions:forward"),
    Operator("aten::convolution_backward.default", template="convolutions:backward", guarded=("bias_sizes",)),
    Operator("aten::linalg_cross", refused=ROUNDED_BETWEEN),
    Operator("aten::mm.default", template="products:mm"),
)
