# SPDX-License-Identifier: BSD-3-Clause
"""Training of a model for a few steps on two devices, from the same weights and with the same data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

CPU = torch.device("cpu")

# Gives the loss of a model for one step's data.
Loss = Callable[[nn.Module, Any], torch.Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def moved(value: Any, device: torch.device) -> Any:
    return torch.utils._pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, value)


def losses(
    model: nn.Module, loss_of: Loss, steps: Iterable[Any], device: torch.device, optimizer: MakeOptimizer
) -> list[float]:
    """Return the loss of each step on a copy of the model. A step is a list of data whose gradients are accumulated."""
    ours = copy.deepcopy(model).to(device)
    stepper = optimizer(ours.parameters())
    totals = []
    for step in steps:
        stepper.zero_grad()
        total = 0.0
        for data in step:
            loss = loss_of(ours, moved(data, device))
            loss.backward()
            total += loss.item()
        stepper.step()
        totals.append(total)
    return totals


def assert_trains(
    model: nn.Module,
    loss_of: Loss,
    steps: Iterable[Any],
    device: torch.device,
    optimizer: MakeOptimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    tolerance: float = 0.0,
) -> None:
    """Assert that the model learns on the CPU, and that the device follows it."""
    steps = list(steps)
    expected = losses(model, loss_of, steps, CPU, optimizer)
    assert expected[-1] < expected[0]
    losses_here = losses(model, loss_of, steps, device, optimizer)
    torch.testing.assert_close(losses_here, expected, rtol=tolerance, atol=tolerance)
