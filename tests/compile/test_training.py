# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of compiled functions and compiled optimizers; test_real_models.py trains whole models."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .conftest import Compare


@pytest.mark.core
def test_gradients(compare: Compare) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(16, 24, requires_grad=True), torch.randn(16, 24, requires_grad=True)
    compare(lambda x, y: (F.gelu(x) @ y.t()).relu().mean(), x, y)


@pytest.mark.core
def test_gradients_of_a_convolution(compare: Compare) -> None:
    torch.manual_seed(0)
    x, w, b = (torch.randn(*size, requires_grad=True) for size in ((2, 3, 8, 8), (5, 3, 3, 3), (5,)))
    compare(lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b, padding=1)), 2), x, w, b, tolerance=1e-4)


def test_gradients_of_an_embedding(compare: Compare) -> None:
    torch.manual_seed(0)
    weight = torch.randn(12, 8, requires_grad=True)
    compare(lambda w, i: F.embedding(i, w).sum(1).exp(), weight, torch.randint(0, 12, (4, 7)), tolerance=1e-3)


@pytest.mark.core
def test_a_compiled_optimizer(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    ours = copy.deepcopy(model).to(device)
    x = torch.randn(5, 6)
    for net, where in ((model, "cpu"), (ours, device)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        step = torch.compile(optimizer.step) if net is ours else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            net(x.to(where)).square().mean().backward()
            step()
    for left, right in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(left.cpu(), right)
