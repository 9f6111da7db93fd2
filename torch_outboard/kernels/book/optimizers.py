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

ArgumentValue = Any  # a tensor, None or a bool

Values = dict[str, torch.Tensor]


def _prepare_step(arguments: dict[str, ArgumentValue]) -> tuple[torch.Tensor, torch.Tensor, Values]:
    """Return the parameter, its gradient in the direction of the step, and the values written so far.

    With a scale, the unscaled gradient is one of the written values.
    """
    values: Values = {}
    grad = widened(arguments["grads"])
    if arguments["grad_scale"] is not None:
        grad = values["grads"] = grad / arguments["grad_scale"].to(grad.dtype)
    return widened(arguments["self"]), -grad if arguments["maximize"] else grad, values


def _apply_weight_decay(grad: torch.Tensor, parameter: torch.Tensor, weight_decay: torch.Tensor) -> torch.Tensor:
    # Do not multiply by 0: a parameter may be infinite.
    return torch.where(weight_decay != 0, grad + parameter * weight_decay.to(grad.dtype), grad)


def _unless_found_inf(values: Values, arguments: dict[str, ArgumentValue]) -> Values:
    """Return the values in their types, or the old values if found_inf is set."""
    found_inf = arguments["found_inf"]
    result: Values = {}
    for name, value in values.items():
        old = arguments[name]
        value = value.to(old.dtype)
        result[name] = value if found_inf is None else torch.where(found_inf == 1, old, value)
    return result


def _adam(arguments: dict[str, ArgumentValue], is_decoupled: bool) -> Values:
    parameter, grad, values = _prepare_step(arguments)
    kind = parameter.dtype
    beta1, beta2, decay = arguments["beta1"], arguments["beta2"], arguments["weight_decay"]
    lr, step = arguments["lr"].to(beta1.dtype), arguments["state_steps"].to(beta1.dtype)
    if is_decoupled:
        parameter = torch.where(decay != 0, parameter - (lr * decay).to(kind) * parameter, parameter)
    else:
        grad = _apply_weight_decay(grad, parameter, decay)
    mean, square = widened(arguments["exp_avgs"]), widened(arguments["exp_avg_sqs"])
    mean = mean + (1 - beta1).to(kind) * (grad - mean)
    square = beta2.to(kind) * square + (1 - beta2).to(kind) * grad * grad
    values.update(exp_avgs=mean, exp_avg_sqs=square)
    if arguments["amsgrad"]:
        square = values["max_exp_avg_sqs"] = torch.maximum(widened(arguments["max_exp_avg_sqs"]), square)
    size = (lr / (1 - torch.pow(beta1, step))).to(kind)
    root = (1 - torch.pow(beta2, step)).sqrt().to(kind)
    values["self"] = parameter - size * mean / (square.sqrt() / root + arguments["eps"].to(kind))
    return _unless_found_inf(values, arguments)


def _adam_alone(arguments: dict[str, ArgumentValue]) -> Values:
    return _adam(arguments, is_decoupled=False)


def _adamw(arguments: dict[str, ArgumentValue]) -> Values:
    return _adam(arguments, is_decoupled=True)


def _sgd(arguments: dict[str, ArgumentValue]) -> Values:
    parameter, grad, values = _prepare_step(arguments)
    kind = parameter.dtype
    grad = _apply_weight_decay(grad, parameter, arguments["weight_decay"])
    buffer = arguments["momentum_buffer_list"]
    if buffer is not None:
        momentum = arguments["momentum"].to(kind)
        old = momentum * widened(buffer) + (1 - arguments["dampening"]).to(kind) * grad
        buffer = grad if arguments["is_first_step"] else old
        values["momentum_buffer_list"] = buffer
        grad = grad + momentum * buffer if arguments["nesterov"] else buffer
    values["self"] = parameter - arguments["lr"].to(kind) * grad
    return _unless_found_inf(values, arguments)


def _adagrad(arguments: dict[str, ArgumentValue]) -> Values:
    parameter, grad, values = _prepare_step(arguments)
    kind = parameter.dtype
    grad = _apply_weight_decay(grad, parameter, arguments["weight_decay"])
    decay = arguments["lr_decay"]
    rate = arguments["lr"].to(decay.dtype) / (1 + (arguments["state_steps"].to(decay.dtype) - 1) * decay)
    total = values["state_sums"] = widened(arguments["state_sums"]) + grad * grad
    values["self"] = parameter - rate.to(kind) * (grad / (total.sqrt() + arguments["eps"].to(kind)))
    return _unless_found_inf(values, arguments)


def _check_and_unscale(arguments: dict[str, ArgumentValue]) -> Values:
    scaled = widened(arguments["self"])
    scale = arguments["inv_scale"].to(scaled.dtype)
    value = torch.where(scale == 1, scaled, scaled * scale).to(arguments["self"].dtype)
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
    states = (self, growth_tracker, found_inf)
    if [tensor.dtype for tensor in states] != [torch.float32, torch.int32, torch.float32] or any(
        tensor.dim() for tensor in states
    ):
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
        elements = {name: _element(value, number) for name, value in arguments.items()}
        for name, value in update.formula(elements).items():
            target = arguments[name]
            if isinstance(target, torch.Tensor):  # found_inf, shared by all elements
                target.copy_(torch.where(value.any(), 1, target))
            else:
                target[number].copy_(value)


def _element(value: Any, number: int) -> ArgumentValue:
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
