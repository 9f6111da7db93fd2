# SPDX-License-Identifier: BSD-3-Clause
"""Whole training steps as graphs: forward, backward and optimizer, with the losses of the eager run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_outboard import CaptureError

from .support import module_of, ran_device_kernels, runs_operators, skip_unless_graphs_draw

STEPS = 6


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    """Ask libraries for results that repeat: a bias below a norm has a gradient of rounding, by which Adam steps."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.set_flags(_deterministic=True, _fp32_precision=None)
    yield
    torch.backends.cudnn.set_flags(_deterministic=before, _fp32_precision=None)


class DigitsNet(nn.Module):
    """The network of examples/digits.py."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(tokens).mean(dim=1))


def digits(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.rand(16, 1, 8, 8, generator=generator), torch.randint(10, (16,), generator=generator)


def tokens(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(4, 12, 32, generator=generator), torch.randint(10, (4,), generator=generator)


def train(
    device: torch.device,
    make_model: type[nn.Module],
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
    make_batch: Callable[[int], tuple[Tensor, Tensor]],
    *,
    is_graphed: bool,
) -> tuple[list[float], dict[str, Tensor]]:
    module = module_of(device)
    torch.manual_seed(5)
    model = make_model().to(device)
    optimizer = make_optimizer(model.parameters())
    data, target = (tensor.to(device) for tensor in make_batch(0))
    losses: list[float] = []

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    # The first steps are eager in both runs: they make the optimizer's state.
    for index in range(2):
        losses.append(step().item())
        for tensor, fresh in zip((data, target), make_batch(index + 1), strict=True):
            tensor.copy_(fresh)
    graph = module.Graph()
    if is_graphed:
        with module.graph(graph):
            loss = step()
    for index in range(2, STEPS):
        if is_graphed:
            graph.replay()
        else:
            loss = step()
        losses.append(loss.item())
        for tensor, fresh in zip((data, target), make_batch(index + 1), strict=True):
            tensor.copy_(fresh)
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, capturable=True),
    "adam-foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.01, capturable=True, foreach=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.01, capturable=True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["digits", "transformer"])
def test_a_training_step_replays_with_the_eager_losses(device: torch.device, model: str, optimizer: str) -> None:
    make_model, make_batch = (DigitsNet, digits) if model == "digits" else (Transformer, tokens)
    if not runs_operators(device):
        pytest.skip("capability: kernels, the host's or generated ones. Copies are not captured")
    if model == "transformer":
        skip_unless_graphs_draw(device)  # its dropout draws
    arguments = (device, make_model, OPTIMIZERS[optimizer], make_batch)
    eager, eager_state = train(*arguments, is_graphed=False)
    graphed, graphed_state = train(*arguments, is_graphed=True)
    # The same kernels on the same data, dropout's random numbers included. Those of
    # a driver may add in any order.
    exact = {"rtol": 0.0, "atol": 0.0} if not ran_device_kernels() else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(graphed, eager, **exact)
    assert len(set(eager)) == STEPS
    for name, value in eager_state.items():
        torch.testing.assert_close(graphed_state[name], value, **exact, msg=lambda text, name=name: f"{name}: {text}")


def test_an_optimizer_that_is_not_capturable_says_so(device: torch.device) -> None:
    with pytest.raises(CaptureError, match="captur"):
        train(device, DigitsNet, lambda p: torch.optim.Adam(p, lr=0.01), digits, is_graphed=True)
    assert (torch.ones(2, device=device) + 1).tolist() == [2, 2]
