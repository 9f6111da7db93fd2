# SPDX-License-Identifier: BSD-3-Clause
"""Functions that are traced in place of operators that cannot be traced themselves.

Either the operator's schema does not declare what it writes, or the operator is a private part of another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_outboard.kernels.cells import CELLS
from torch_outboard.kernels.decompositions import with_statistics
from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates.ctc import ctc_alphas, ctc_backward

__all__ = ["BODIES", "BODIES_IN_REALS"]


def _batch_norm(given: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *numbers: Any) -> Any:
    """Normalise by the overload whose schema declares that it writes the running statistics."""
    if len(numbers) != 2 or (mean is None) != (var is None):
        raise Refusal("it is called in a form that isn't functional")
    legit = torch.ops.aten._native_batch_norm_legit
    if mean is None:
        return with_statistics(legit.no_stats(given, weight, bias, training, *numbers), given, weight, bias)
    result = legit.default(given, weight, bias, mean, var, training, *numbers)
    if training:
        return with_statistics(result, given, weight, bias, mean, var)
    # In evaluation, the CPU's kernel saves no statistics, as its meta kernel reports. The decomposition copies them.
    return (result[0], *((given if weight is None else weight).new_zeros(0) for _ in range(2)))


def _batch_norm_in_place(given: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """Normalise, as the overloads whose schemas declare what they write: with running statistics, or without."""
    if len(rest) == 3:
        training, *numbers = rest
        return _batch_norm(given, weight, bias, None, None, training, *numbers)
    return _batch_norm(given, weight, bias, *rest)


def _batch_norm_with_update(given: Any, weight: Any, bias: Any, mean: Any, var: Any, *numbers: Any) -> Any:
    """Normalise in training; the last result is cuDNN's reserved space, which is empty here."""
    return (*_batch_norm(given, weight, bias, mean, var, True, *numbers), given.new_zeros(0, dtype=torch.uint8))


def _cumulative(function: Callable[..., Any]) -> Callable[..., None]:
    def body(self: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
        found = function(self, dim)
        values.copy_(found[0])
        indices.copy_(found[1])

    return body


def _logcumsumexp(self: torch.Tensor, dim: int, *out: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.logcumsumexp.default(self, dim)
    return out[0].copy_(result) if out else result


def _update_scale(
    real: torch.dtype,
    self: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    """Update the scale as CUDA's kernel does: in doubles, if there are any, rounded once. The scale stays finite."""
    given = (self, growth_tracker, found_inf)
    if [one.dtype for one in given] != [torch.float32, torch.int32, torch.float32] or any(one.dim() for one in given):
        raise Refusal("the scale, its tracker and what was found are not a float32, an int32 and a float32")
    wide = self.to(real)
    steps = growth_tracker + 1
    is_bad, is_due = found_inf != 0, steps == interval
    grown = (wide * growth).to(self.dtype)
    grown = torch.where(is_due & grown.isfinite(), grown, self)
    growth_tracker.copy_(torch.where(is_bad | is_due, 0, steps))
    return self.copy_(torch.where(is_bad, (wide * backoff).to(self.dtype), grown))


def _attention_backward(*given: Any) -> Any:
    """Return only the wanted gradients."""
    *positional, scale = given
    operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default
    wanted = positional[5]
    results = operator(*positional, scale=scale)
    return [one if is_wanted else None for one, is_wanted in zip(results, wanted, strict=True)]


def _labels(log_probs: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return labels read from a table, so that an invalid class is an error, with 0 after the end of a target."""
    classes = torch.arange(log_probs.shape[2], device=labels.device)
    is_label = torch.arange(labels.shape[1], device=labels.device) < lengths.unsqueeze(1)
    taken = classes.gather(0, torch.where(is_label, labels, 0).flatten())
    return taken.reshape(labels.shape).contiguous()


def _ctc_loss(log_probs: torch.Tensor, labels: torch.Tensor, *rest: Any) -> Any:
    return ctc_alphas(log_probs, _labels(log_probs, labels, rest[1]), *rest)


def _ctc_loss_backward(grad: torch.Tensor, log_probs: torch.Tensor, labels: torch.Tensor, *rest: Any) -> Any:
    return ctc_backward(grad, log_probs, _labels(log_probs, labels, rest[1]), *rest)


def _weight_norm_backward(
    grad: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    others = [one for one in range(v.dim()) if one != dim % v.dim()]
    wide = torch.promote_types(v.dtype, torch.float32)
    grad, v_wide, g_wide, norms = (one.to(wide) for one in (grad, v, g, norms))
    along = (grad * v_wide).sum(others, keepdim=True)
    grad_v = g_wide / norms * (grad - v_wide * along / (norms * norms))
    return grad_v.to(v.dtype), (along / norms).to(g.dtype)


# Operator without overload and form -> its function, which takes all of the operator's arguments.
BODIES: dict[str, Callable[..., Any]] = {
    "aten::_batch_norm_with_update": _batch_norm_with_update,
    "aten::_cummax_helper": _cumulative(torch.ops.aten.cummax.default),
    "aten::_cummin_helper": _cumulative(torch.ops.aten.cummin.default),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "aten::_logcumsumexp": _logcumsumexp,
    "aten::_native_batch_norm_legit": _batch_norm_in_place,
    "aten::_weight_norm_interface_backward": _weight_norm_backward,
    "aten::native_batch_norm": _batch_norm,
    "outboard::ctc_loss": _ctc_loss,
    "outboard::ctc_loss_backward": _ctc_loss_backward,
    **CELLS,
}

# The same for functions whose first argument is the widest type of reals that kernels compute in.
BODIES_IN_REALS: dict[str, Callable[..., Any]] = {"aten::_amp_update_scale": _update_scale}
