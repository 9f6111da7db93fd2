# SPDX-License-Identifier: BSD-3-Clause
"""Losses, and what they check."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from torch_outboard.kernels.book.row import Body, Operator

__all__ = ["OPERATORS"]


def _labels(log_probs: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return labels read from a table, so that an invalid class is an error, with 0 after the end of a target."""
    classes = torch.arange(log_probs.shape[2], device=labels.device)
    is_label = torch.arange(labels.shape[1], device=labels.device) < lengths.unsqueeze(1)
    taken = classes.gather(0, torch.where(is_label, labels, 0).flatten())
    return taken.reshape(labels.shape).contiguous()


def _ctc_loss(log_probs: torch.Tensor, labels: torch.Tensor, *rest: Any) -> Any:
    from torch_outboard.kernels.templates.ctc import ctc_alphas

    return ctc_alphas(log_probs, _labels(log_probs, labels, rest[1]), *rest)


def _ctc_loss_backward(grad: torch.Tensor, log_probs: torch.Tensor, labels: torch.Tensor, *rest: Any) -> Any:
    from torch_outboard.kernels.templates.ctc import ctc_backward

    return ctc_backward(grad, log_probs, _labels(log_probs, labels, rest[1]), *rest)


def _check_probabilities(given: torch.Tensor, target: torch.Tensor, *_: Any) -> None:
    tensors = {"input": given} | ({"target": target} if _checks_targets() else {})
    for name, tensor in tensors.items():
        is_probability = torch.logical_and(tensor >= 0, tensor <= 1)
        wrong = f"all elements of {name} should be between 0 and 1"
        torch.ops.aten._assert_async.msg(is_probability.all(), wrong)


@functools.cache
def _checks_targets() -> bool:
    """Return True if this torch's CPU kernel refuses targets outside [0, 1]; older kernels compute with them."""
    with ThreadPoolExecutor(1) as outside:  # a trace is active on this thread
        return outside.submit(_refuses_target).result()


def _refuses_target() -> bool:
    try:
        torch.ops.aten.binary_cross_entropy.default(torch.tensor([0.5]), torch.tensor([2.0]))
    except RuntimeError:
        return True
    return False


OPERATORS = (
    Operator("aten::binary_cross_entropy.default", check=_check_probabilities),
    Operator("outboard::ctc_alphas.default", template="ctc:forward"),
    Operator("outboard::ctc_gradient.default", template="ctc:backward"),
    Operator("outboard::ctc_loss", computed=Body(_ctc_loss)),
    Operator("outboard::ctc_loss_backward", computed=Body(_ctc_loss_backward)),
)
