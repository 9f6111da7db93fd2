# SPDX-License-Identifier: BSD-3-Clause
"""Published architectures with random weights: eager and compiled training on the device follow the CPU's.

ResNet-18 comes from transformers: timm needs torchvision, which has no build for a CPU's torch.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="the models of the test extra")

pytestmark = [pytest.mark.models, pytest.mark.database]

STEPS = 20
# Of losses that begin above 2: compiled sums are of another order, and twenty
# steps of training carry that on.
TOLERANCE = 1e-3


class Scan(nn.Module):
    """A selective state-space layer as in Mamba (arXiv 2312.00752), with its recurrence written out step by step."""

    def __init__(self, width: int = 16, states: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.rates = nn.Parameter(torch.rand(width, states).neg())
        self.select = nn.Linear(width, 2 * states)
        self.step = nn.Linear(width, width)
        self.head = nn.Linear(width, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        into, out = self.select(x).chunk(2, -1)
        delta = nn.functional.softplus(self.step(x))
        state = torch.zeros(*x.shape[::2], into.shape[-1], device=x.device)
        results = []
        for t in range(x.shape[1]):
            decay = (delta[:, t, :, None] * self.rates).exp()
            state = decay * state + (delta[:, t] * x[:, t]).unsqueeze(-1) * into[:, t, None, :]
            results.append((state * out[:, t, None, :]).sum(-1))
        return self.head(torch.stack(results, 1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.head = nn.Linear(24, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


def resnet(stages: int) -> nn.Module:
    """Return a ResNet-18, which has four stages."""
    config = transformers.ResNetConfig(
        layer_type="basic",
        depths=[2] * stages,
        hidden_sizes=[64 << stage for stage in range(stages)],
        embedding_size=64,
        num_labels=10,
    )
    return transformers.ResNetForImageClassification(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_labels=10,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on both sides; teams of threads that share cores wait for each other
    yield
    torch.set_num_threads(threads)


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))


def tokens(count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.randint(0, 32, (4, count + 1))
    return text[:, :-1], text[:, 1:]


# For models whose graph has each step written out: a few, as the compiler takes seconds for each.
few_tokens = functools.partial(tokens, 5)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, torch.Tensor]]]] = {
    "half of ResNet-18": (functools.partial(resnet, 2), images),
    "GPT-2": (gpt2, tokens),
    "Mamba-style scan": (Scan, few_tokens),
    "LSTM": (Recurrent, few_tokens),
}
# By `make stress` alone: the kernels of the first take a minute to compile, and the others have
# parts alike above.
LONG = {"ResNet-18": (functools.partial(resnet, 4), images), "Llama": (llama, tokens), "ViT": (vit, images)}


def _losses(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, is_compiled: bool) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        answer: Any = model(inputs)
        scores = answer if isinstance(answer, torch.Tensor) else answer.logits
        return nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten())

    step = torch.compile(loss_of, fullgraph=True) if is_compiled else loss_of
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = step(inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", [*MODELS, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
@pytest.mark.filterwarnings("ignore")  # of the models' library, about versions to come
@torch._dynamo.config.patch(allow_rnn=True)
def test_training(device: torch.device, name: str) -> None:
    make, data = (MODELS | LONG)[name]
    torch.manual_seed(0)
    model = make().train()
    inputs, targets = data()
    theirs = copy.deepcopy(model)
    expected = _losses(theirs, inputs, targets, is_compiled=False)
    assert expected[-1] < expected[0]
    for is_compiled in (False, True):
        ours = copy.deepcopy(model).to(device)
        losses = _losses(ours, inputs.to(device), targets.to(device), is_compiled)
        torch.testing.assert_close(losses, expected, rtol=TOLERANCE, atol=TOLERANCE)
        for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(left.cpu(), right, rtol=2 * TOLERANCE, atol=2 * TOLERANCE)
