# SPDX-License-Identifier: BSD-3-Clause
"""Models train with nothing on the CPU, to the losses of the CPU; `make stress` trains whole ones."""

from __future__ import annotations

import copy
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_outboard

eager_and_compiled = pytest.mark.parametrize(
    "is_compiled", [False, pytest.param(True, marks=pytest.mark.long)], ids=["eager", "compiled"]
)


class Residual(nn.Module):
    """The parts of a ResNet: a stem, a block with a shortcut, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.block = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12))
        self.shortcut = nn.Sequential(nn.Conv2d(8, 12, 1, 2, bias=False), nn.BatchNorm2d(12))
        self.classify = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(x))
        x = F.relu(self.block(x) + self.shortcut(x))
        return self.classify(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Gpt(nn.Module):
    """A layer of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        heads = self.qkv(self.norms[0](x)).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return (self.norms[2](x) @ self.tokens.weight.t()).flatten(0, 1)


def train(model: nn.Module, inputs: torch.Tensor, wanted: torch.Tensor, rate: float) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(F.cross_entropy(model.eval()(inputs), wanted).item())
    return losses


def check(
    model: nn.Module,
    inputs: torch.Tensor,
    wanted: torch.Tensor,
    device: torch.device,
    is_compiled: bool,
    rate: float = 0.01,
) -> None:
    ours = copy.deepcopy(model).to(device)
    if is_compiled:
        ours.compile()
    torch_outboard.reset_coverage()
    losses = train(ours, inputs.to(device), wanted.to(device), rate)
    check_providers()
    torch.testing.assert_close(losses, train(model, inputs, wanted, rate), rtol=1e-3, atol=1e-3)


def check_providers() -> None:
    """Check that kernels of the device computed everything: generated ones, and a library's if the driver has one."""
    assert {row.provider for row in torch_outboard.coverage()} - {"native"} == {"generated"}, torch_outboard.coverage()


@eager_and_compiled
def test_a_residual_network(device: torch.device, is_compiled: bool) -> None:
    check(Residual(), torch.randn(4, 3, 36, 34), torch.randint(10, (4,)), device, is_compiled)


@pytest.mark.long
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_resnet_18(device: torch.device, is_compiled: bool) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = ResNetConfig(
                layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], num_labels=10
            )
            self.model = ResNetForImageClassification(config)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.model(images).logits

    # At a higher rate the loss rises to thousands, and tells of rounding alone; so it does from
    # some weights, where the CPU's own losses are 1e-3 from those of float64.
    torch.manual_seed(0)
    check(Logits(), torch.randn(8, 3, 32, 32), torch.randint(10, (8,)), device, is_compiled, rate=1e-4)


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_a_gpt(device: torch.device, is_compiled: bool) -> None:
    tokens = torch.randint(50, (3, 13))
    check(Gpt(), tokens[:, :-1], tokens[:, 1:].flatten(), device, is_compiled)


@eager_and_compiled
def test_a_gpt_generates_with_a_static_cache(device: torch.device, is_compiled: bool) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    count = 200 if os.environ.get("OUTBOARD_TEST_LONG") == "1" else 24
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=60, n_positions=256, pad_token_id=0, eos_token_id=59)
    model = GPT2LMHeadModel(config).eval()
    tokens = torch.randint(1, 59, (2, 5))
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "cache_implementation": "static"}
    expected = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
    ours, prompt = model.to(device), tokens.to(device)
    if is_compiled:
        ours.forward = torch.compile(ours.forward)
    torch_outboard.reset_coverage()
    result = ours.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    check_providers()
    # Where two tokens are as likely as each other but for rounding, both are right.
    assert (result.cpu() == expected).float().mean() > 0.9
