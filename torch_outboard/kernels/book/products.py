# SPDX-License-Identifier: BSD-3-Clause
"""Matrix products and convolutions, which have templates."""

from __future__ import annotations

from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.rounding import ROUNDED_BETWEEN
from torch_outboard.kernels.book.row import Operator

__all__ = ["OPERATORS"]


def _addbmm(self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Compute the sum of all products as a single product of matrices placed side by side."""
    left = batch1.transpose(0, 1).reshape(batch1.shape[1], -1)
    return torch.ops.aten.addmm.default(self, left, batch2.reshape(-1, batch2.shape[2]), beta=beta, alpha=alpha)


def _without_product(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """Leave out a product with a factor of 0, so that its NaNs have no effect, as in the CPU's kernel."""
    if alpha != 0 or mat1.is_complex():
        return NotImplemented
    size = (mat1.shape[0], mat2.shape[1])
    return torch.zeros(size, dtype=mat1.dtype, device=mat1.device) if beta == 0 else (self * beta).expand(size).clone()


OPERATORS = (
    Operator("aten::_convolution", facts=Facts(correct="correct_convolution")),
    Operator("aten::addbmm aten::baddbmm", facts=Facts(bad_arguments={"self batch1 batch2": "dtypes_differ<3>"})),
    Operator("aten::addbmm.default", decomposition=_addbmm),
    Operator("aten::addmm", facts=Facts(bad_arguments={"self mat1 mat2": "dtypes_differ<3>"})),
    Operator("aten::addmm.default", template="products:addmm", decomposition=_without_product),
    Operator("aten::addmv", facts=Facts(bad_arguments={"self mat vec": "dtypes_differ<3>"})),
    Operator("aten::addr aten::linalg_cross", refused=ROUNDED_BETWEEN),
    Operator("aten::addr.default", facts=Facts(shape_rule="addr")),
    Operator("aten::baddbmm.default", template="products:baddbmm"),
    Operator("aten::bmm aten::mm", facts=Facts(bad_arguments={"self mat2": "dtypes_differ<2>"})),
    Operator("aten::bmm.default", template="products:bmm"),
    Operator(
        "aten::convolution",
        facts=Facts(
            correct="correct_convolution",
            bad_arguments={"dilation": "is_bad_dilation", "input weight bias": "dtypes_differ<3>"},
        ),
    ),
    Operator("aten::convolution.default", template="convolutions:forward"),
    Operator("aten::convolution_backward", facts=Facts(correct="correct_convolution_backward")),
    Operator("aten::convolution_backward.default", template="convolutions:backward", guarded=("bias_sizes",)),
    Operator("aten::dot", facts=Facts(bad_arguments={"self tensor": "dtypes_differ<2>"})),
    Operator("aten::dot.default aten::vdot.default", facts=Facts(shape_rule="dot")),
    Operator("aten::linear", facts=Facts(bad_arguments={"input weight bias": "dtypes_differ<3>"})),
    Operator("aten::mm.default", template="products:mm"),
    Operator("aten::vdot", facts=Facts(bad_arguments={"self other": "dtypes_differ<2>"})),
)
