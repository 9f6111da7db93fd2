# SPDX-License-Identifier: BSD-3-Clause
"""Models of real programs that once failed here: their losses on the device are the CPU's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

import torch_outboard

from .training import CPU, assert_trains, losses

# Where the CPU has a fused kernel for its own tensors, or a compiler orders sums
# anew, losses differ by rounding.
ROUNDING = 1e-4


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_gradients_of_an_embedding_are_accumulated(device):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 6, sparse=True)

        def forward(self, tokens):
            return self.embed(tokens).mean(1)

    # The parts of a step share some rows.
    steps = [[torch.randint(0, 20, (4, 5)) for _ in range(3)]] * 6

    def loss_of(model, tokens):
        return (model(tokens) - 1).square().mean()

    for optimizer in (torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad):
        assert_trains(
            Words(), loss_of, steps, device, lambda parameters, make=optimizer: make(list(parameters), lr=0.1)
        )


def test_sparse_gradients_hold_every_part(device):
    gradients = []
    weights = torch.randn(5, 2)
    for place in (CPU, device):
        embed = nn.Embedding(5, 2, sparse=True, _weight=weights.clone()).to(place)
        for tokens in ([1, 2], [1, 3], [0, 0]):
            embed(torch.tensor(tokens, device=place)).square().sum().backward()
        gradients.append(embed.weight.grad.to_dense().cpu())
    assert gradients[0].count_nonzero() == 8
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "Adagrad", "SGD"])
def test_complex_parameters(device, name):
    class Rotation(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

        def forward(self, x):
            return x @ self.weight

    x = torch.randn(8, 4, dtype=torch.complex64)
    wanted = x @ torch.randn(4, 4, dtype=torch.complex64)
    steps = [[(x, wanted)]] * 6

    def loss_of(model, data):
        return (model(data[0]) - data[1]).abs().square().mean()

    assert_trains(Rotation(), loss_of, steps, device, lambda p: getattr(torch.optim, name)(p, lr=0.05))


@pytest.mark.parametrize("kind", ["transposed", "cropped", "channels last"])
def test_batch_norm_of_an_input_that_is_not_contiguous(device, kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 8)
            self.norm = nn.BatchNorm1d(8 if kind != "cropped" else 5)
            self.last = nn.Linear(8 if kind != "cropped" else 5, 3)

        def forward(self, x):
            x = self.first(x)  # batch, time, features
            if kind == "channels last":
                x = x.mT.unsqueeze(-1).contiguous(memory_format=torch.channels_last).squeeze(-1)
            else:
                x = x.transpose(1, 2)
            if kind == "cropped":
                x = x[:, 1:6]
            return self.last(self.norm(x).transpose(1, 2)).mean(1)

    model = Net()
    steps = [[(torch.randn(5, 7, 6), torch.randint(0, 3, (5,)))]] * 6
    assert_trains(model, lambda m, data: functional.cross_entropy(m(data[0]), data[1]), steps, device)
    running = []
    for place in (CPU, device):
        ours = copy.deepcopy(model).to(place)
        ours(steps[0][0][0].to(place))
        running.append([ours.norm.running_mean.cpu(), ours.norm.running_var.cpu()])
    assert all(torch.equal(a, b) for a, b in zip(*running, strict=True))


def test_data_loader_with_a_generator(device):
    data = TensorDataset(torch.randn(24, 5), torch.randint(0, 3, (24,)))
    model = nn.Linear(5, 3)

    def steps():
        generator = torch.Generator().manual_seed(7)
        train, _ = random_split(data, [20, 4], generator=torch.Generator().manual_seed(3))
        loader = DataLoader(train, batch_size=10, shuffle=True, generator=generator)
        for _ in range(4):
            yield from ([batch] for batch in loader)

    def loss_of(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def run(place):
        return losses(model, loss_of, steps(), place, lambda p: torch.optim.SGD(p, lr=0.5))

    assert run(device) == run(CPU)


def test_a_generator_of_the_device_draws_for_its_tensors_only(device):
    generator = torch.Generator(device).manual_seed(3)
    loader = DataLoader(torch.arange(12), batch_size=4, shuffle=True, generator=generator)
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        next(iter(loader))
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        random_split(torch.arange(12), [6, 6], generator=generator)
    with device:
        order = torch.randperm(12, generator=generator)
    assert sorted(order.tolist()) == list(range(12))


class Attention(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.into(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def test_attention_compiled_for_any_length(device, tmp_path, monkeypatch):
    driver = torch_outboard.attached_driver()
    assert driver is not None
    if driver.code_generator is None:
        pytest.skip(f"capability: a code generator. {driver.name} names none")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    model = Attention()
    lengths = (5, 9, 12, 7, 16, 3)
    inputs = [torch.randn(3, length, 16) for length in lengths] * 2
    steps = [[x] for x in inputs]

    def loss_of(model, x):
        return (model(x) - x).square().mean()

    expected = losses(model, loss_of, steps, CPU, lambda p: torch.optim.SGD(p, lr=0.1))
    assert expected[-1] < expected[5]
    ours = copy.deepcopy(model).to(device)
    compiled = torch.compile(ours, dynamic=True, fullgraph=True)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    compiled_losses = []
    for x in inputs:
        optimizer.zero_grad()
        loss = loss_of(compiled, x.to(device))
        loss.backward()
        optimizer.step()
        compiled_losses.append(loss.item())
    torch.testing.assert_close(compiled_losses, expected, rtol=ROUNDING, atol=ROUNDING)
