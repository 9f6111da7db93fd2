# SPDX-License-Identifier: BSD-3-Clause
"""DTensor sharding for the attention operators of this package's devices.

DTensor supports CUDA's attention operators. It would decompose other operators into matrix products, and search for
shardings of all of them, which takes minutes. Batches and heads are independent, so tensors may be sharded along both.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from torch_outboard._compat.imports import when_imported

__all__ = ["register_attention_when_imported"]

BATCH, HEADS = 0, 1
RANK = 4  # dimensions of queries, keys and values


def register_attention_when_imported() -> None:
    """Register the shardings as soon as DTensor is imported, which takes seconds."""
    when_imported("torch.distributed.tensor", _register)


def _register(module: ModuleType) -> None:
    from torch.distributed.tensor.experimental import register_sharding

    aten = torch.ops.aten
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    flash_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    whole = aten._scaled_dot_product_fused_attention_overrideable
    register_sharding(flash.default)(_flash)
    register_sharding(flash_backward.default)(_flash_backward)
    register_sharding(whole.default)(_attention)
    register_sharding(aten._scaled_dot_product_fused_attention_overrideable_backward.default)(_attention_backward)


def _choices() -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    return [Replicate(), Shard(BATCH), Shard(HEADS)]


def _of_mask(mask: Any, place: Any) -> list[Any]:
    """Return a mask's placement. A mask may lack leading dimensions, or have some of size 1."""
    from torch.distributed.tensor import Replicate, Shard

    if mask is None:
        return []
    if not isinstance(place, Shard):
        return [place]
    dim = place.dim - (RANK - len(mask.shape))
    return [Shard(dim) if dim >= 0 and mask.shape[dim] != 1 else Replicate()]


def _flash(*tensors: Any, attn_mask: Any = None, **named: Any) -> list[tuple[list[Any], list[Any]]]:
    return [([placement] * 2, [placement] * 3 + _of_mask(attn_mask, placement)) for placement in _choices()]


def _flash_backward(*tensors: Any, attn_mask: Any = None, **named: Any) -> list[tuple[list[Any], list[Any]]]:
    return [([placement] * 3, [placement] * 6 + _of_mask(attn_mask, placement)) for placement in _choices()]


def _attention(
    query: Any, key: Any, value: Any, attn_bias: Any = None, *others: Any, **named: Any
) -> list[tuple[list[Any], list[Any]]]:
    from torch.distributed.tensor import Replicate

    rest = [None, None, None, None, Replicate(), Replicate(), None]  # all shards share the state of dropout
    return [([placement] * 2 + rest, [placement] * 3 + _of_mask(attn_bias, placement)) for placement in _choices()]


def _attention_backward(
    gradient: Any, query: Any, key: Any, value: Any, attn_bias: Any, *others: Any, **named: Any
) -> list[tuple[list[Any], list[Any]]]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    choices = []
    for placement in _choices():
        bias = _of_mask(attn_bias, placement)
        # If several shards share a mask, its gradient is the sum of theirs.
        is_shared = isinstance(placement, Shard) and bias == [Replicate()]
        of_bias = [Partial()] if is_shared else bias or [None]
        choices.append(([placement] * 3 + of_bias, [placement] * 4 + bias + [placement] * 2 + [Replicate()] * 2))
    return choices
