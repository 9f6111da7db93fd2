# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.15: flex_attention refuses devices missing from its list, and compiles to Triton on the others.

The list is in torch/nn/attention/flex_attention.py, and devices cannot add themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_outboard._compat.source import mentions

__all__ = ["MODULE", "accept_device", "needs_accept_device"]

MODULE = "torch.nn.attention.flex_attention"


def needs_accept_device() -> bool:
    """Return True if flex_attention lists the devices that may call it."""
    from torch.nn.attention import flex_attention

    return mentions(flex_attention._validate_device, "hpu")


def accept_device(module: ModuleType, device: str, has_templates: Callable[[int], bool]) -> None:
    """Make flex_attention accept tensors of a device type; `module` is torch's module of that name.

    If `has_templates(index)` is true, compiled calls on the device use Triton's templates, as on CUDA. All other calls
    run operators on the full matrix of scores, as torch's own eager calls do.
    """
    if not needs_accept_device():
        return

    def index_has_templates(index: int) -> bool:
        return has_templates(index)

    # torch.compiler.assume_constant_result sets this too, but it imports Dynamo, whose import may
    # be in progress.
    index_has_templates._dynamo_marked_constant = True  # type: ignore[attr-defined]
    check_of_torch = module._validate_device
    operator = module.flex_attention_hop

    @functools.wraps(check_of_torch)
    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != device:
            check_of_torch(query, key, value)

    # Dynamo traces it into operators, which have their own gradients and autocast rules.
    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any) -> Any:
        if query.device.type != device:
            return operator(query, key, value, *others)
        if not index_has_templates(query.device.index or 0):
            return _by_operators(module._vmap_for_bhqkv, query, key, value, *others)
        if not torch.is_autocast_enabled(device):
            return operator(query, key, value, *others)
        # The operator has autocast rules for torch's own devices only.
        query, key, value = (_autocast(tensor, device) for tensor in (query, key, value))
        with torch.autocast(device, enabled=False):
            return operator(query, key, value, *others)

    # As for the autocast keys of torch's own devices: gradients have the dtypes of their tensors.
    from torch._higher_order_ops.flex_attention import flex_attention_backward

    flex_attention_backward.fallthrough(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined, no-untyped-call]
    module._validate_device = validate_device  # type: ignore[attr-defined]
    module.flex_attention_hop = attention  # type: ignore[attr-defined]


def _autocast(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(torch.get_autocast_dtype(device))


class _Indexed(torch.overrides.TorchFunctionMode):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """Indexes with tensors without reading them, because under vmap they have no values."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function is torch.Tensor.__getitem__:
            indices = arguments[1] if isinstance(arguments[1], (tuple, list)) else (arguments[1],)
            if all(isinstance(index, torch.Tensor) for index in indices):
                return torch.ops.aten.index.Tensor(arguments[0], list(indices))
        return function(*arguments, **(named or {}))


def _by_operators(
    for_each: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any],
    block_mask: tuple[Any, ...],
    scale: float,
    options: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the result and, per row, the base-2 logarithm of its sum and its largest score in base 2."""
    group = query.size(1) // key.size(1)
    key, value = (tensor.repeat_interleave(group, 1).expand(query.size(0), -1, -1, -1) for tensor in (key, value))
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(dtype) @ key.to(dtype).transpose(-2, -1) * scale
    places = [torch.arange(size, device=query.device) for size in scores.shape]
    with _Indexed():
        is_seen = for_each(block_mask[-1], prefix=())(*places)
        scores = for_each(score_mod, prefix=(0,))(scores, *places)
    scores = scores.to(dtype).masked_fill(~is_seen, -math.inf)
    weights = torch.ops.aten._safe_softmax(scores, -1)
    result = weights.to(query.dtype) @ value.to(query.dtype)
    return result, scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)
