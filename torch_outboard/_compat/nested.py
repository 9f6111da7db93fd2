# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.15: attention on jagged nested tensors has kernels for CUDA, and one path for all other devices.

That path creates nested tensors with the strided layout, which out-of-tree devices do not support.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from torch_outboard._compat.source import mentions

__all__ = ["MODULE", "attend_jagged", "needs_attend_jagged"]

MODULE = "torch.nested._internal.ops"  # imports the function by name
_NAME = "jagged_scaled_dot_product_attention"


def needs_attend_jagged() -> bool:
    """Return True if attention on jagged tensors creates strided ones on devices for which torch has no kernels."""
    from torch.nested._internal import sdpa

    return mentions(getattr(sdpa, _NAME), "as_nested_tensor")


def attend_jagged(ops: ModuleType, device: str) -> None:
    """Make scaled_dot_product_attention of a device's jagged tensors run on padded tensors.

    The function chooses a backend by querying CUDA, and there is no hook for a device. Upstream:
    torch/nested/_internal/sdpa.py.
    """
    if not needs_attend_jagged():
        return
    from torch.nested._internal import sdpa

    of_torch = getattr(ops, _NAME)

    @functools.wraps(of_torch)
    def attend(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        inputs = (query, key, value)
        # If the heads are ragged, torch attends to the values, which are ordinary tensors.
        is_padded = all(getattr(tensor, "_ragged_idx", 0) == 2 and tensor.dim() == 4 for tensor in inputs)
        if query.device.type != device or not is_padded:
            return of_torch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        sdpa._validate_sdpa_input(query, key, value, attn_mask)
        if key._values.size(1) != value._values.size(1):
            raise ValueError("scaled_dot_product_attention: key and value must have sequences of one length")
        return _attend_padded(query, key, value, dropout_p, is_causal, scale, enable_gqa)

    setattr(ops, _NAME, attend)


def _attend_padded(query: Any, key: Any, value: Any, dropout: float, is_causal: bool, scale: Any, gqa: bool) -> Any:
    from torch.nested._internal.nested_tensor import nested_from_padded

    longest, keys = query._get_max_seqlen(), key._get_max_seqlen()
    padded = [_padded(tensor, size) for tensor, size in ((query, longest), (key, keys), (value, keys))]
    # In causal self-attention, no query sees the padding, which comes after it.
    mask = None
    if not is_causal or key.offsets() is not query.offsets():
        place = torch.arange(keys, device=key.device)
        mask = place < key.offsets().diff()[:, None, None, None]
        if is_causal:
            mask = mask & (place <= torch.arange(longest, device=key.device)[:, None])
    attended = torch.nn.functional.scaled_dot_product_attention(
        padded[0], padded[1], padded[2], mask, dropout, is_causal and mask is None, scale=scale, enable_gqa=gqa
    )
    result: Any = nested_from_padded(  # type: ignore[no-untyped-call]
        attended.transpose(1, 2),
        query.offsets(),
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=longest,
        sum_S=query._values.size(1),
    )
    return result.transpose(1, 2)


def _padded(nested: Any, longest: Any) -> torch.Tensor:
    """Return a padded tensor with heads before rows. Its gradient requires rows as the values' first dimension."""
    rows = nested.transpose(1, 2)
    sizes = [rows.shape[0], longest, *rows.shape[2:]]
    padded: torch.Tensor = torch.ops.aten.to_padded_tensor.default(rows, 0.0, sizes)
    return padded.transpose(1, 2)
