# SPDX-License-Identifier: BSD-3-Clause
"""Training in mixed precision: the digits network and a small transformer, against float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

STEPS = 200
BATCH = 32
BAD_STEP = 50


def digits():
    pytest.importorskip("sklearn")
    from examples.digits import DigitsNet, load_data

    images, labels = load_data().train.tensors
    return DigitsNet(), images, labels, 2e-4


class TransformerNet(nn.Module):
    """A network that finds the largest of its tokens, which all differ."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(32, 32)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))


def transformer():
    generator = torch.Generator().manual_seed(2)
    tokens = torch.stack([torch.randperm(32, generator=generator)[:6] for _ in range(1024)])
    return TransformerNet(), tokens, tokens.max(1).values, 1e-3


TASKS = {"digits": digits, "transformer": transformer}


def train(task, place, low=None, scaler=None, bad_step=None, steps=STEPS):
    """Train, except at `bad_step`, and return the float32 loss on 512 examples and each step's scale."""
    torch.manual_seed(3)
    model, inputs, labels, rate = TASKS[task]()
    model, inputs, labels = model.to(place), inputs.to(place), labels.to(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, foreach=True)
    order = torch.Generator().manual_seed(4)
    scales = []
    for step in range(steps):
        chosen = torch.randint(0, len(labels), (BATCH,), generator=order).to(place)
        optimizer.zero_grad()
        with torch.autocast(torch.device(place).type, dtype=low, enabled=low is not None):
            loss = functional.cross_entropy(model(inputs[chosen]), labels[chosen])
        if scaler is None:
            loss.backward()
            if step != bad_step:
                optimizer.step()
            continue
        scaler.scale(loss * float("inf") if step == bad_step else loss).backward()
        before = [parameter.detach().clone() for parameter in model.parameters()] if step == bad_step else []
        scaler.step(optimizer)
        scaler.update()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=bool(before)))
        scales.append(scaler.get_scale())
    model.eval()
    with torch.no_grad():
        return functional.cross_entropy(model(inputs[:512]).float(), labels[:512]).item(), scales


@pytest.fixture(scope="module")
def float32_losses():
    return {}


@pytest.mark.database
@pytest.mark.parametrize("task", TASKS)
def test_the_loss_is_that_of_float32(device, low, task, float32_losses):
    if task not in float32_losses:
        float32_losses[task], _ = train(task, "cpu", bad_step=BAD_STEP)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0) if low == torch.float16 else None
    loss, scales = train(task, device, low, scaler, BAD_STEP)
    assert loss == pytest.approx(float32_losses[task], rel=0.02)
    if scaler is not None:
        # Exactly that step was skipped: any other would have halved the scale too.
        assert scales == [1024.0] * BAD_STEP + [512.0] * (STEPS - BAD_STEP)
