# SPDX-License-Identifier: BSD-3-Clause
"""The elementwise formulas of fused optimizers, and of AMP's scale.

Functions take the operator's arguments by name: a tensor for a list, and a tensor without dimensions for a number, a
one-element tensor or `state_steps`. An empty list or a missing tensor is None. Functions return the new values of the
written arguments. As in torch's kernels, halves are computed in float. Values that depend only on the step are computed
in the type of the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.rounding import widened
from torch_outboard.kernels.book.row import Body, Operator, Update
from torch_outboard.kernels.refusal import ClassRefusal

__all__ = ["OPERATORS", "run_update"]

Given = Any  # a tensor, None or a bool

Values = dict[str, torch.Tensor]


def _begun(given: dict[str, Given]) -> tuple[torch.Tensor, torch.Tensor, Values]:
    """Return the parameter, its gradient in the direction of the step, and the values written so far.

    With a scale, the unscaled gradient is one of the written values.
    """
    values: Values = {}
    grad = widened(given["grads"])
    if given["grad_scale"] is not None:
        grad = values["grads"] = grad / given["grad_scale"].to(grad.dtype)
    return widened(given["self"]), -grad if given["maximize"] else grad, values


def _decayed(grad: torch.Tensor, parameter: torch.Tensor, weight_decay: torch.Tensor) -> torch.Tensor:
    # Do not multiply by 0: a parameter may be infinite.
    return torch.where(weight_decay != 0, grad + parameter * weight_decay.to(grad.dtype), grad)


def _written(values: Values, given: dict[str, Given]) -> Values:
    """Return the values in their types, or the old values if found_inf is set."""
    found_inf = given["found_inf"]
    result: Values = {}
    for name, value in values.items():
        old = given[name]
        value = value.to(old.dtype)
        result[name] = value if found_inf is None else torch.where(found_inf == 1, old, value)
    return result


def _adam(given: dict[str, Given], is_decoupled: bool) -> Values:
    parameter, grad, values = _begun(given)
    kind = parameter.dtype
    beta1, beta2, decay = given["beta1"], given["beta2"], given["weight_decay"]
    lr, step = given["lr"].to(beta1.dtype), given["state_steps"].to(beta1.dtype)
    if is_decoupled:
        parameter = torch.where(decay != 0, parameter - (lr * decay).to(kind) * parameter, parameter)
    else:
        grad = _decayed(grad, parameter, decay)
    mean, square = widened(given["exp_avgs"]), widened(given["exp_avg_sqs"])
    mean = mean + (1 - beta1).to(kind) * (grad - mean)
    square = beta2.to(kind) * square + (1 - beta2).to(kind) * grad * grad
    values.update(exp_avgs=mean, exp_avg_sqs=square)
    if given["amsgrad"]:
        square = values["max_exp_avg_sqs"] = torch.maximum(widened(given["max_exp_avg_sqs"]), square)
    size = (lr / (1 - torch.pow(beta1, step))).to(kind)
    root = (1 - torch.pow(beta2, step)).sqrt().to(kind)
    values["self"] = parameter - size * mean / (square.sqrt() / root + given["eps"].to(kind))
    return _written(values, given)


def _adam_alone(given: dict[str, Given]) -> Values:
    return _adam(given, is_decoupled=False)


def _adamw(given: dict[str, Given]) -> Values:
    return _adam(given, is_decoupled=True)


def _sgd(given: dict[str, Given]) -> Values:
    parameter, grad, values = _begun(given)
    kind = parameter.dtype
    grad = _decayed(grad, parameter, given["weight_decay"])
    buffer = given["momentum_buffer_list"]
    if buffer is not None:
        momentum = given["momentum"].to(kind)
        old = momentum * widened(buffer) + (1 - given["dampening"]).to(kind) * grad
        buffer = grad if given["is_first_step"] else old
        values["momentum_buffer_list"] = buffer
        grad = grad + momentum * buffer if given["nesterov"] else buffer
    values["self"] = parameter - given["lr"].to(kind) * grad
    return _written(values, given)


def _adagrad(given: dict[str, Given]) -> Values:
    parameter, grad, values = _begun(given)
    kind = parameter.dtype
    grad = _decayed(grad, parameter, given["weight_decay"])
    decay = given["lr_decay"]
    rate = given["lr"].to(decay.dtype) / (1 + (given["state_steps"].to(decay.dtype) - 1) * decay)
    total = values["state_sums"] = widened(given["state_sums"]) + grad * grad
    values["self"] = parameter - rate.to(kind) * (grad / (total.sqrt() + given["eps"].to(kind)))
    return _written(values, given)


def _check_and_unscale(given: dict[str, Given]) -> Values:
    scaled = widened(given["self"])
    scale = given["inv_scale"].to(scaled.dtype)
    value = torch.where(scale == 1, scaled, scaled * scale).to(given["self"].dtype)
    # Only finite values are less than infinity; comparisons with NaN are false.
    return {"self": value, "found_inf": ~(scaled.abs() < float("inf"))}


def _update_scale(
    real: torch.dtype,
    self: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    """Update the scale as CUDA's kernel does: in double if available, rounded once. The scale stays finite."""
    given = (self, growth_tracker, found_inf)
    if [one.dtype for one in given] != [torch.float32, torch.int32, torch.float32] or any(one.dim() for one in given):
        raise ClassRefusal("scale and found_inf must be float32, and growth_tracker int32 [mixed-types]")
    wide = self.to(real)
    steps = growth_tracker + 1
    is_bad, is_due = found_inf != 0, steps == interval
    grown = (wide * growth).to(self.dtype)
    grown = torch.where(is_due & grown.isfinite(), grown, self)
    growth_tracker.copy_(torch.where(is_bad | is_due, 0, steps))
    return self.copy_(torch.where(is_bad, (wide * backoff).to(self.dtype), grown))


def run_update(update: Update, arguments: Mapping[str, Any]) -> None:
    """Write an optimizer's new values to the tensors of its lists, one tensor after the other."""
    for number in range(len(arguments["self"])):
        given = {name: _element(value, number) for name, value in arguments.items()}
        for name, value in update.formula(given).items():
            target = arguments[name]
            if isinstance(target, torch.Tensor):  # found_inf, shared by all elements
                target.copy_(torch.where(value.any(), 1, target))
            else:
                target[number].copy_(value)


def _element(value: Any, number: int) -> Given:
    if isinstance(value, (list, tuple)):
        return value[number] if value else None
    return value.reshape(()) if isinstance(value, torch.Tensor) else value


OPERATORS = (
    Operator("aten::_amp_foreach_non_finite_check_and_unscale", computed=Update(_check_and_unscale)),
    Operator("aten::_amp_update_scale", computed=Body(_update_scale, takes_reals=True)),
    Operator("aten::_fused_adagrad", computed=Update(_adagrad)),
    Operator("aten::_fused_adagrad_ aten::_fused_sgd_", facts=Facts(keeps_shapes=True)),
    Operator("aten::_fused_adam", computed=Update(_adam_alone)),
    Operator("aten::_fused_adamw", computed=Update(_adamw)),
    Operator("aten::_fused_sgd", computed=Update(_sgd)),
)
