# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of distances between rows."""

from __future__ import annotations

import torch

from torch_outboard.kernels.book.row import Operator

__all__ = ["OPERATORS"]


def _cdist_backward(
    grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, p: float, cdist: torch.Tensor
) -> torch.Tensor:
    """Sum the slopes of a row's distances to all rows of `x2`."""
    batch = grad.shape[:-2]
    ours, theirs = x1.expand(*batch, *x1.shape[-2:]), x2.expand(*batch, *x2.shape[-2:])
    return _slopes(ours, theirs, p, grad, cdist)


def _pdist_backward(grad: torch.Tensor, self: torch.Tensor, p: float, pdist: torch.Tensor) -> torch.Tensor:
    """Compute the same for the distances of all pairs of rows, which are stored consecutively by first row."""
    count = self.shape[0]
    if count < 2:
        return torch.zeros_like(self)
    number = torch.arange(count, device=self.device)
    low, high = torch.minimum(number[:, None], number), torch.maximum(number[:, None], number)
    is_pair = low != high
    place = torch.where(is_pair, count * low - torch.div(low * (low + 1), 2, rounding_mode="floor") + high - low - 1, 0)
    wholes = (torch.where(is_pair, tensor[place], 0) for tensor in (grad, pdist))
    return _slopes(self, self, p, *wholes)


def _slopes(
    ours: torch.Tensor, theirs: torch.Tensor, p: float, grad: torch.Tensor, distance: torch.Tensor
) -> torch.Tensor:
    difference = ours.unsqueeze(-2) - theirs.unsqueeze(-3)
    size, sign = difference.abs(), difference.sign()
    grad, distance = grad.unsqueeze(-1), distance.unsqueeze(-1)
    if p == 0:
        slope = torch.zeros_like(difference)
    elif p == 1:
        slope = grad * sign
    elif p == float("inf"):
        slope = torch.where(size == distance, grad * sign, 0)
    elif p == 2:
        slope = torch.where(distance == 0, 0, grad * difference / distance)
    elif p < 1:
        slope = torch.where(torch.logical_or(distance == 0, size == 0), 0, _power(size, distance, p) * sign * grad)
    else:
        slope = torch.where(distance == 0, 0, _power(size, distance, p) * sign * grad)
    result: torch.Tensor = slope.sum(-2)
    return result


def _power(size: torch.Tensor, distance: torch.Tensor, p: float) -> torch.Tensor:
    return (size / distance).pow(p - 1)


OPERATORS = (
    Operator("aten::_cdist_backward.default", decomposition=_cdist_backward),
    Operator("aten::_pdist_backward.default", decomposition=_pdist_backward),
)
