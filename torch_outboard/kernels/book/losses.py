# SPDX-License-Identifier: BSD-3-Clause
"""Losses and their checks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.indexing import check_between
from torch_outboard.kernels.book.row import Body, Operator
from torch_outboard.kernels.refusal import other_sizes

__all__ = ["OPERATORS"]

_NONE, _MEAN, _SUM = 0, 1, 2  # reductions


def _labels(log_probs: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return labels with 0 after the end of a target, read through a table so that an invalid class is an error."""
    classes = torch.arange(log_probs.shape[2], device=labels.device)
    is_label = torch.arange(labels.shape[1], device=labels.device) < lengths.unsqueeze(1)
    checked = classes.gather(0, torch.where(is_label, labels, 0).flatten())
    return checked.reshape(labels.shape).contiguous()


def _ctc_loss(log_probs: torch.Tensor, labels: torch.Tensor, *rest: Any) -> Any:
    from torch_outboard.kernels.templates.ctc import ctc_alphas

    return ctc_alphas(log_probs, _labels(log_probs, labels, rest[1]), *rest)


def _ctc_loss_backward(grad: torch.Tensor, log_probs: torch.Tensor, labels: torch.Tensor, *rest: Any) -> Any:
    from torch_outboard.kernels.templates.ctc import ctc_backward

    return ctc_backward(grad, log_probs, _labels(log_probs, labels, rest[1]), *rest)


def _check_probabilities(probabilities: torch.Tensor, target: torch.Tensor, *_: Any) -> None:
    tensors = {"input": probabilities} | ({"target": target} if _checks_targets() else {})
    for name, tensor in tensors.items():
        check_between(tensor, 0, 1, f"all elements of {name} should be between 0 and 1")


@functools.cache
def _checks_targets() -> bool:
    """Return True if this torch's CPU kernel refuses targets outside [0, 1]; older kernels accept them."""
    with ThreadPoolExecutor(1) as outside:  # a trace is active on this thread
        return outside.submit(_refuses_target).result()


def _refuses_target() -> bool:
    try:
        torch.ops.aten.binary_cross_entropy.default(torch.tensor([0.5]), torch.tensor([2.0]))
    except RuntimeError:
        return True
    return False


# Gradients of margin losses, whose targets are a sample's classes.


def _multi_margin_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    p: Any,
    margin: Any,
    weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
) -> torch.Tensor:
    rows, classes = _by_sample(self), target.reshape(-1, 1)
    is_class = torch.logical_and(classes >= 0, classes < rows.shape[-1])
    torch.ops.aten._assert_async.msg(is_class.all(), "target out of range")
    is_target = torch.arange(rows.shape[-1], device=self.device) == classes
    distance = margin - rows.gather(1, classes) + rows
    slope = torch.where(distance > 0, torch.ones_like(distance) if p == 1 else 2 * distance, 0) / rows.shape[-1]
    if weight is not None:
        slope = slope * weight[classes]
    slope = torch.where(is_target, 0, slope)
    slope = torch.where(is_target, -slope.sum(1, keepdim=True), slope)
    return (slope * _of_sample(grad_output, rows.shape[0], reduction)).reshape(self.shape)


def _multilabel_margin_forward(self: torch.Tensor, target: torch.Tensor, reduction: int) -> Any:
    """Ignore labels from the first -1 on; torch's decomposition counts them as class 0."""
    rows, classes = _by_sample(self), _by_sample(target)
    is_there, classes = _labels_of(classes)
    number = torch.arange(rows.shape[1], device=self.device)
    is_target = torch.logical_and(classes.unsqueeze(2) == number, is_there.unsqueeze(2)).any(1)
    distance = 1 - rows.gather(1, classes).unsqueeze(2) + rows.unsqueeze(1)
    is_close = torch.logical_and(torch.logical_and(distance > 0, ~is_target.unsqueeze(1)), is_there.unsqueeze(2))
    losses = torch.where(is_close, distance, 0).sum((1, 2)) / rows.shape[1]
    if reduction == _NONE:
        losses = losses.reshape(self.shape[:-1])
    else:
        losses = losses.mean() if reduction == _MEAN else losses.sum()
    return losses, is_target.to(self.dtype).reshape(target.shape)


def _labels_of(classes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a mask of the labels before the first -1, and the labels with 0 in place of the others."""
    is_there = (classes == -1).cumsum(1) == 0
    return is_there, torch.where(is_there, classes, 0)


def _multilabel_margin_backward(
    grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int, is_target: torch.Tensor
) -> torch.Tensor:
    rows, classes = _by_sample(self), _by_sample(target)
    check_between(is_target, 0, 1, "argument #5 'is_target' is out of range")
    is_there, classes = _labels_of(classes)
    is_close = 1 - rows.gather(1, classes).unsqueeze(2) + rows.unsqueeze(1) > 0
    is_other = is_target.reshape(rows.shape).unsqueeze(1) == 0
    pairs = torch.logical_and(torch.logical_and(is_close, is_other), is_there.unsqueeze(2)).to(self.dtype)
    slope = torch.scatter_add(pairs.sum(1), 1, classes, -pairs.sum(2)) / rows.shape[-1]
    return (slope * _of_sample(grad_output, rows.shape[0], reduction)).reshape(self.shape)


def _by_sample(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1] if tensor.dim() > 0 else 1)


def _of_sample(grad: torch.Tensor, samples: Any, reduction: int) -> torch.Tensor:
    """Return the gradient of each sample's loss."""
    return grad.reshape(-1, 1) if reduction == _NONE else grad / samples if reduction == _MEAN else grad


def _check_target(self: torch.Tensor, target: torch.Tensor, *_: Any) -> None:
    """Refuse sizes that do not match: torch's meta kernel reads only the input's sizes."""
    if (self.shape[0], *self.shape[2:]) != tuple(target.shape):
        raise other_sizes()


def _check_labels(grad: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int, is_target: Any) -> None:
    if target.shape != is_target.shape:
        raise other_sizes()


def _nll_backward(name: str) -> Callable[..., torch.Tensor]:
    """Wrap torch's decomposition to return 0 for all classes but the target, even if the gradient is not finite."""

    def gradient(
        grad_output: torch.Tensor,
        self: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None,
        reduction: int,
        ignore_index: int,
        total_weight: torch.Tensor,
    ) -> torch.Tensor:
        decomposed = torch._decomp.decomposition_table[getattr(torch.ops.aten, name).default]
        result = decomposed(grad_output, self, target, weight, reduction, ignore_index, total_weight)
        is_target = decomposed(self.new_ones(()), self, target, None, _SUM, ignore_index, total_weight) != 0
        return torch.where(is_target, result, 0)

    return gradient


OPERATORS = (
    Operator("aten::binary_cross_entropy", facts=Facts(bad_arguments={"self target weight": "dtypes_differ<3>"})),
    Operator(
        "aten::binary_cross_entropy.default", check=_check_probabilities, facts=Facts(shape_rule="binary_cross_entropy")
    ),
    Operator("aten::binary_cross_entropy_backward", facts=Facts(layout="like", like=1)),
    Operator("aten::huber_loss", facts=Facts(layout="like", bad_numbers={"self delta": "is_not_positive"})),
    Operator("aten::huber_loss.default", facts=Facts(shape_rule="huber_loss")),
    Operator(
        "aten::multi_margin_loss", facts=Facts(bad_arguments={"p": "is_bad_margin_order"}, raises_runtime_error=True)
    ),
    Operator("aten::multi_margin_loss_backward", facts=Facts(bad_arguments={"p": "is_bad_margin_order"})),
    Operator("aten::multi_margin_loss_backward.default", decomposition=_multi_margin_backward),
    Operator("aten::multilabel_margin_loss_backward", facts=Facts(raises_runtime_error=True)),
    Operator(
        "aten::multilabel_margin_loss_backward.default",
        decomposition=_multilabel_margin_backward,
        check=_check_labels,
    ),
    # Torch's own decompositions take precedence over the decompositions in a table.
    Operator(
        "aten::multilabel_margin_loss_forward",
        computed=Body(_multilabel_margin_forward),
        facts=Facts(raises_runtime_error=True),
    ),
    Operator("aten::nll_loss2d_backward.default", decomposition=_nll_backward("nll_loss2d_backward")),
    Operator(
        "aten::nll_loss2d_forward",
        facts=Facts(layout="contiguous", bad_arguments={"self target weight": "has_bad_class_indices"}),
    ),
    Operator("aten::nll_loss2d_forward.default", check=_check_target),
    Operator("aten::nll_loss_backward.default", decomposition=_nll_backward("nll_loss_backward")),
    Operator("aten::nll_loss_forward", facts=Facts(bad_arguments={"self target weight": "has_bad_class_indices"})),
    Operator("aten::smooth_l1_loss", facts=Facts(bad_numbers={"self beta": "is_negative"})),
    Operator("outboard::ctc_alphas.default", template="ctc:forward"),
    Operator("outboard::ctc_gradient.default", template="ctc:backward"),
    Operator("outboard::ctc_loss", computed=Body(_ctc_loss)),
    Operator("outboard::ctc_loss_backward", computed=Body(_ctc_loss_backward)),
)
