# SPDX-License-Identifier: BSD-3-Clause
"""Attention, as the fused operator that `scaled_dot_product_attention` calls on devices."""

from __future__ import annotations

from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.row import Body, Operator

__all__ = ["OPERATORS"]


def _attention_backward(*arguments: Any) -> Any:
    """Return only the requested gradients."""
    *positional, scale = arguments
    operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default
    wanted = positional[5]
    results = operator(*positional, scale=scale)
    return [gradient if is_wanted else None for gradient, is_wanted in zip(results, wanted, strict=True)]


OPERATORS = (
    Operator("aten::_scaled_dot_product_flash_attention_for_cpu", facts=Facts(correct="correct_flash_attention")),
    # torch registers it for the CPU only to report that a device must implement it.
    Operator(
        "aten::_scaled_dot_product_fused_attention_overrideable",
        facts=Facts(checked_values="values", dropout_argument=4),
    ),
    Operator(
        "aten::_scaled_dot_product_fused_attention_overrideable.default",
        template="attention:forward",
        facts=Facts(composed="compose_attention"),
    ),
    Operator(
        "aten::_scaled_dot_product_fused_attention_overrideable_backward",
        computed=Body(_attention_backward),
        facts=Facts(checked_values="values", dropout_argument=12),
    ),
    Operator(
        "aten::_scaled_dot_product_fused_attention_overrideable_backward.default",
        template="attention:backward",
        determined=("max_q", "max_k"),
        facts=Facts(composed="compose_attention_gradients"),
    ),
)
