# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for operators that Inductor leaves to a library: a template writes steps of a plan for an operator's call.

The operators of `TEMPLATES` stay calls when a graph is lowered. Where a plan would call one, its template writes
allocations and launches instead. That holds for the called operator and for parts of another's decomposition. A
template writes one text for all sizes, with sizes and strides as arguments of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_outboard.kernels.templates import attention, convolutions, ctc, products, segments, sorts, upsampling
from torch_outboard.kernels.templates.call import TemplateCall

__all__ = ["TEMPLATES"]

# Each template returns the names of the operator's results, None for an undefined one.
TEMPLATES: Mapping[Any, Callable[[TemplateCall], list[str | None]]] = {
    torch.ops.aten.mm.default: products.mm,
    torch.ops.aten.addmm.default: products.addmm,
    torch.ops.aten.bmm.default: products.bmm,
    torch.ops.aten.baddbmm.default: products.baddbmm,
    torch.ops.aten.convolution.default: convolutions.forward,
    torch.ops.aten.convolution_backward.default: convolutions.backward,
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default: attention.forward,
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default: attention.backward,
    ctc.ctc_alphas: ctc.forward,
    ctc.ctc_backward: ctc.backward,
    segments.combined: segments.combine_sorted,
    # For a matrix, along its rows: decompositions.py converts other calls to that.
    torch.ops.aten.sort.stable: sorts.sort,
    upsampling.upsample_backward: upsampling.backward,
}
