# SPDX-License-Identifier: BSD-3-Clause
"""The device's generators."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .support import module_of

STATE_BYTES = 16
DRAWS = {
    "rand": lambda device, **kw: torch.rand(1000, device=device, **kw),
    "randn": lambda device, **kw: torch.randn(1000, device=device, **kw),
    "randint": lambda device, **kw: torch.randint(0, 100, (1000,), device=device, **kw),
    "randperm": lambda device, **kw: torch.randperm(1000, device=device, **kw),
    "normal_": lambda device, **kw: torch.empty(1000, device=device).normal_(2, 3, **kw),
    "exponential_": lambda device, **kw: torch.empty(1000, device=device).exponential_(2, **kw),
    "bernoulli": lambda device, **kw: torch.bernoulli(torch.full((1000,), 0.3, device=device), **kw),
    "multinomial": lambda device, **kw: torch.multinomial(torch.ones(50, device=device), 20, **kw),
}


@pytest.fixture(autouse=True)
def restored_state(device):
    state = module_of(device).get_rng_state(device)
    yield
    module_of(device).set_rng_state(state, device)


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_gives_the_same_numbers_again(device, name):
    draw = DRAWS[name]
    torch.manual_seed(1)
    first, second = draw(device), draw(device)
    torch.manual_seed(1)
    again = draw(device)
    torch.manual_seed(2)
    reseeded = draw(device)
    assert first.device == device
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, reseeded)


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_of_ones_own(device, name):
    draw = DRAWS[name]
    default = module_of(device).get_rng_state(device)
    first = draw(device, generator=torch.Generator(device).manual_seed(5))
    again = draw(device, generator=torch.Generator(device).manual_seed(5))
    assert torch.equal(first, again)
    assert torch.equal(module_of(device).get_rng_state(device), default)


@pytest.mark.parametrize("name", DRAWS)
def test_a_state_is_saved_and_restored(device, name):
    draw = DRAWS[name]
    module = module_of(device)
    module.manual_seed(9)
    draw(device)
    state = module.get_rng_state(device)
    first = draw(device)
    module.set_rng_state(state, device)
    assert torch.equal(draw(device), first)


WITHOUT_A_GENERATOR = {
    "dropout": lambda device: functional.dropout(torch.ones(50, device=device), 0.5),
    "native_dropout": lambda device: torch.native_dropout(torch.ones(50, device=device), 0.5, True),
    "feature_dropout": lambda device: functional.dropout2d(torch.ones(9, 9, 2, 2, device=device), 0.5),
    "alpha_dropout": lambda device: functional.alpha_dropout(torch.ones(50, device=device), 0.5, True),
    "rrelu": lambda device: functional.rrelu(-torch.ones(50, device=device), training=True),
    "attention": lambda device: functional.scaled_dot_product_attention(
        *[torch.ones(1, 2, 8, 4, device=device)] * 3, dropout_p=0.5
    ),
    "rand_like": lambda device: torch.rand_like(torch.ones(50, device=device)),
    "LSTM": lambda device: torch.nn.LSTM(3, 4, 2, dropout=0.5).to(device)(torch.ones(5, 2, 3, device=device))[0],
}


@pytest.mark.parametrize("name", [*DRAWS, *WITHOUT_A_GENERATOR])
def test_random_operators_draw_from_the_devices_generator_alone(device, name):
    draw = (DRAWS | WITHOUT_A_GENERATOR)[name]
    module = module_of(device)
    torch.manual_seed(1)
    draw(device)
    torch.accelerator.synchronize(device)
    torch.manual_seed(1)
    host, ours = torch.get_rng_state(), module.get_rng_state(device)
    if name == "LSTM":
        # Making its weights draws from the CPU's generator.
        torch.nn.LSTM(3, 4, 2)
        host = torch.get_rng_state()
        torch.manual_seed(1)
    draw(device)
    torch.accelerator.synchronize(device)
    assert torch.equal(torch.get_rng_state(), host)
    assert not torch.equal(module.get_rng_state(device), ours)


def test_the_state_has_cudas_form(device):
    generator = torch.Generator(device)
    assert generator.device == device
    state = generator.manual_seed(123).get_state()
    assert (state.dtype, state.shape, state.device.type) == (torch.uint8, (STATE_BYTES,), "cpu")
    assert state[:8].view(torch.int64).item() == 123
    assert generator.initial_seed() == 123
    torch.rand(10, device=device, generator=generator)
    moved = generator.get_state()
    assert moved[:8].view(torch.int64).item() == 123
    assert moved[8:].view(torch.int64).item() > 0
    assert generator.get_offset() == moved[8:].view(torch.int64).item()
    generator.set_offset(0)
    assert torch.equal(generator.get_state(), state)
    clone = generator.clone_state()
    draws = [torch.rand(5, device=device, generator=each) for each in (generator, clone)]
    assert torch.equal(*draws)


def test_a_bad_state_is_refused(device):
    generator = torch.Generator(device)
    for state in (torch.zeros(15, dtype=torch.uint8), torch.zeros(16)):
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            generator.set_state(state)
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        torch.rand(3, device=device, generator=torch.Generator())


def test_a_state_may_be_exchanged_beside_draws(device):
    """The state that a draw reads lives until the draw is done, even without other owners."""
    drawn, exchanged = torch.Generator(device), torch.Generator(device)
    expected = {}
    for seed in range(50):
        expected[torch.rand(1, device=device, generator=exchanged.manual_seed(seed)).item()] = seed
    is_over = threading.Event()

    def exchange():
        while not is_over.is_set():
            for seed in range(50):
                drawn.graphsafe_set_state(torch.Generator(device).manual_seed(seed).graphsafe_get_state())

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        draws = [torch.rand(1, device=device, generator=drawn) for _ in range(300)]
    finally:
        is_over.set()
        thread.join()
    assert len({draw.item() for draw in draws}) > 1
    exchanged.graphsafe_set_state(drawn.graphsafe_get_state())
    exchanged.manual_seed(7)
    assert expected[torch.rand(1, device=device, generator=drawn).item()] == 7


def test_seed_functions(device):
    module = module_of(device)
    module.manual_seed_all(77)
    assert module.initial_seed() == 77
    assert len(module.default_generators) == module.device_count()
    module.seed()
    assert module.initial_seed() != 77
    states = module.get_rng_state_all()
    first = torch.rand(4, device=device)
    module.set_rng_state_all(states)
    assert torch.equal(torch.rand(4, device=device), first)


def test_devices_have_generators_of_their_own(device, second_device):
    torch.manual_seed(4)
    ours = torch.rand(100, device=device)
    theirs = torch.rand(100, device=second_device)
    torch.manual_seed(4)
    torch.rand(7, device=device)
    assert torch.equal(torch.rand(100, device=second_device), theirs)
    assert torch.equal(ours.cpu(), theirs.cpu())


def test_fork_rng_restores(device):
    torch.manual_seed(6)
    first = torch.rand(4, device=device)
    torch.manual_seed(6)
    with torch.random.fork_rng(devices=[device.index], device_type=device.type):
        torch.rand(100, device=device)
    assert torch.equal(torch.rand(4, device=device), first)


def test_dropout_and_its_gradient_use_one_mask(device):
    torch.manual_seed(8)
    ours = torch.ones(10_000, device=device, requires_grad=True)
    result = torch.nn.functional.dropout(ours, 0.25)
    result.sum().backward()
    assert torch.equal(result != 0, ours.grad != 0)
    assert abs((result == 0).float().mean().item() - 0.25) < 0.03


@pytest.mark.parametrize(
    "draw,mean,deviation",
    [
        (lambda t: t.uniform_(-1, 3), 1.0, 4 / 12**0.5),
        (lambda t: t.normal_(2, 3), 2.0, 3.0),
        (lambda t: t.exponential_(0.5), 2.0, 2.0),
        (lambda t: t.bernoulli_(0.3), 0.3, 0.21**0.5),
        (lambda t: t.random_(0, 11), 5.0, 10**0.5),
    ],
    ids=["uniform", "normal", "exponential", "bernoulli", "random"],
)
def test_distributions(device, draw, mean, deviation):
    torch.manual_seed(10)
    size = 100_000
    values = draw(torch.empty(size, device=device)).cpu().double()
    assert abs(values.mean().item() - mean) < 6 * deviation / size**0.5
    assert abs(values.std().item() - deviation) < 0.03 * deviation
    # Consecutive draws and neighbours must not repeat each other.
    assert abs(torch.corrcoef(torch.stack([values[1:], values[:-1]]))[0, 1].item()) < 0.02


def test_the_gradient_of_a_checkpointed_block_sees_the_same_random_numbers(device):
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).to(device)
    ours = torch.randn(16, 8, device=device, requires_grad=True)
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(12)
        ours.grad = None
        run = partial(checkpoint, layer, use_reentrant=False) if checkpointed else layer
        run(ours).sum().backward()
        gradients.append(ours.grad)
    assert torch.equal(*gradients)


def test_every_offset_is_a_state_of_its_own(device):
    """If only 32 bits counted, as in a CPU generator's seed, these offsets of seed 0 would draw the same numbers."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(offset):
        generator.set_offset(offset)
        return torch.rand(100, device=device, generator=generator).cpu()

    assert not torch.equal(draw(4 * 33_351), draw(4 * 61_137))
    draws = torch.stack([draw(4 * index) for index in range(50)])
    correlations = torch.corrcoef(draws.double()).fill_diagonal_(0)
    assert correlations.abs().max() < 0.6
    assert abs(draws.mean().item() - 0.5) < 0.02


def test_a_draw_starts_with_no_normal_left_of_the_one_before(device):
    """The CPU's generator keeps the second of each pair of normals."""
    generator = torch.Generator(device)

    def draws(count):
        generator.manual_seed(3)
        return [torch.randn(1, device=device, generator=generator).cpu() for _ in range(count)]

    for first, again in zip(draws(40), draws(40), strict=True):
        assert torch.equal(first, again)


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: torch.rand(3, generator=g),
        lambda g: torch.randn(3, generator=g),
        lambda g: torch.randint(9, (3,), generator=g),
        lambda g: torch.randperm(5, generator=g),
        lambda g: torch.empty(3).normal_(generator=g),
        lambda g: torch.bernoulli(torch.full((3,), 0.5), generator=g),
        lambda g: torch.multinomial(torch.ones(3), 2, generator=g),
        lambda g: torch.utils.data.random_split([1, 2, 3, 4], [2, 2], generator=g),
        lambda g: list(torch.utils.data.DataLoader([1, 2, 3, 4], shuffle=True, generator=g)),
    ],
)
def test_tensors_on_the_cpu_refuse_the_devices_generator(device, draw):
    with pytest.raises(RuntimeError, match=f"Expected a 'cpu' device type for generator but found '{device.type}'"):
        draw(torch.Generator(device))


def test_a_loader_that_shuffles_with_the_cpus_generator_trains(device):
    def losses(place):
        features = torch.linspace(-1, 1, 32).reshape(16, 2)
        data = torch.utils.data.TensorDataset(features, features.sum(1, keepdim=True))
        loader = torch.utils.data.DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(1))
        model = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(model.weight, 0.25)
        torch.nn.init.zeros_(model.bias)
        model.to(place)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        seen = []
        for _ in range(2):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = (model(inputs.to(place)) - targets.to(place)).square().mean()
                loss.backward()
                optimizer.step()
                seen.append(loss.detach().cpu())
        return torch.stack(seen)

    torch.testing.assert_close(losses(device), losses("cpu"))
