# SPDX-License-Identifier: BSD-3-Clause
"""The waits of a training step: only `.item()` may wait. And the waits of indices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_outboard

from .support import assert_same, has_entry, module_of, pins, queues_operators, reset_waits, waits

ITEM = "aten::_local_scalar_dense"


class DigitsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * 16, 10))

    def forward(self, images):
        return self.classifier(self.features(images))


class TransformerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.layer(self.embedding(tokens), src_mask=mask, is_causal=True).mean(1))


CASES = {
    "digits": (DigitsNet, lambda: torch.rand(16, 1, 8, 8)),
    "transformer": (TransformerNet, lambda: torch.randint(0, 50, (4, 12))),
}
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9),
    "AdamW foreach": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=True),
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, 0.01, fused=True),
}


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("name", CASES)
def test_no_operator_of_a_training_step_waits(device, name, optimizer_name):
    if not queues_operators(device):
        pytest.skip("capability: operators that are queued, as generated kernels or by host_address and host_callback")
    if not (has_entry("host_alloc") and pins()):
        pytest.skip("capability: host_alloc, without which copies from the host wait")
    make, make_inputs = CASES[name]
    model = make().to(device).train()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    inputs = make_inputs().pin_memory()
    targets = torch.randint(0, 10, (len(inputs),)).pin_memory()

    def step():
        optimizer.zero_grad(set_to_none=True)
        ours, labels = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(ours), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    reset_waits()
    losses = [step()]
    torch.accelerator.synchronize(device)
    assert not torch_outboard.coverage().calls(provider="fallback")
    reset_waits()
    losses += [step() for _ in range(3)]
    assert set(waits()) <= {ITEM}
    assert module_of(device).memory_allocated(device) > 0
    assert all(torch.stack(losses).isfinite().tolist())


def test_item_waits_for_the_value(device):
    tensor = torch.zeros(1 << 16, device=device)
    for _ in range(30):
        tensor = tensor + 1
    assert tensor[-1].item() == 30


def indexed(x, i):
    """Yield x by indices that are numbers, in the forms that lay results out in different ways."""
    narrow = i.int()
    yield x[i]
    yield x[:, i]
    yield x[i, i]
    yield x[i[:, None], :, i]
    yield x[None, -1 - i, ..., i]
    yield x[i[0]]
    yield x[narrow]
    yield x[i[:0]]
    yield x[i.reshape(2, 2), 1:]
    yield torch.ops.aten.index(x, [None, None, i])


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.permute(2, 0, 1),
    "cropped": lambda x: x[:, 1:, ::2],
    "expanded": lambda x: x[:1].expand(5, 6, 7),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_indices_that_are_numbers_do_not_wait(device, layout):
    x, i = torch.randn(5, 6, 7), torch.tensor([2, 0, 3, 0])
    ours, index = x.to(device), i.to(device)
    reset_waits()
    results = list(indexed(LAYOUTS[layout](ours), index))
    assert "aten::index.Tensor" not in waits()
    for result, expected in zip(results, indexed(LAYOUTS[layout](x), i), strict=True):
        assert_same(result, expected, device)
        assert result.stride() == expected.stride()


def test_masks_are_waited_for(device):
    x = torch.randn(5, 6)
    ours = x.to(device)
    for mask in (x > 0, (x > 0).any(1), torch.zeros(5, 6, dtype=torch.bool)):
        assert_same(ours[mask.to(device)], x[mask], device)
    i = torch.tensor([1, 4])
    assert_same(ours[:, (x > 0)[0].to(device)], x[:, (x > 0)[0]], device)
    assert_same(ours[(x > 0).any(1).to(device)][:, i.to(device)], x[(x > 0).any(1)][:, i], device)
    ours[ours > 0] = 0
    assert ours.max().item() <= 0
