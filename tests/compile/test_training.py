# SPDX-License-Identifier: BSD-3-Clause
"""Training compiled models: losses and weights agree with the CPU's eager ones."""

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


class Digits(nn.Module):
    """The network of examples/digits.py, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        # A bias here would get gradients of rounding errors only, which Adam makes whole steps of.
        self.second = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.norm(self.second(x))), 2)
        return self.head(x.flatten(1))


class Transformer(nn.Module):
    """Two layers over a small vocabulary; no dropout, whose numbers differ between the devices."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(x)).mean(1))


def _train(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, compiles: bool) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    forward = torch.compile(model, fullgraph=True) if compiles else model
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", [Digits, Transformer])
def test_training(device: torch.device, kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind()
    inputs = torch.randn(12, 1, 8, 8) if kind is Digits else torch.randint(0, 20, (12, 6))
    targets = torch.randint(0, 10, (12,))
    ours = copy.deepcopy(model).to(device)
    got = _train(ours, inputs.to(device), targets.to(device), compiles=True)
    want = _train(model, inputs, targets, compiles=False)
    assert got == pytest.approx(want, rel=1e-3)
    assert want[-1] < want[0]
    for left, right in zip(ours.state_dict().values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(left.cpu(), right, atol=2e-3, rtol=2e-3)


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
