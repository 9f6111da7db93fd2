# SPDX-License-Identifier: BSD-3-Clause
"""Generated kernels draw from the device's generator: the right distributions, each number once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import torch_outboard
from tests.kernels.test_lists import kernels
from torch_outboard import _C

COUNT = 40_000
REALS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def draw(function: Callable[[torch.Tensor], object], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Fill a tensor by a function, on the device alone, and return it on the CPU."""
    x = torch.full((COUNT,), 7, device=device).to(dtype)
    torch_outboard.reset_coverage()
    function(x)
    assert {row.provider for row in torch_outboard.coverage()} == {"generated"}, torch_outboard.coverage()
    return x.cpu().double()


def assert_quantiles(values: torch.Tensor, of: Callable[[torch.Tensor], torch.Tensor], coarse: float = 0.0) -> None:
    """Assert that each tenth of the distribution has a tenth of the values, within five deviations."""
    for tenth in range(1, 10):
        bound = of(torch.tensor(tenth / 10, dtype=torch.float64))
        below = (values < bound).double().mean().item()
        assert abs(below - tenth / 10) < 5 * (0.25 / COUNT) ** 0.5 + coarse, (tenth, below)


@pytest.mark.parametrize("dtype", REALS)
def test_reals(device, dtype):
    coarse = {torch.float16: 0.002, torch.bfloat16: 0.01}.get(dtype, 0)
    drawn = draw(lambda x: x.uniform_(-3, 5), dtype, device)
    assert -3 <= drawn.min() < -2.99 and 4.9 < drawn.max() < 5
    assert_quantiles(drawn, lambda p: p * 8 - 3, coarse)
    normal = torch.distributions.Normal(torch.tensor(0.0).double(), torch.tensor(1.0).double())
    assert_quantiles(draw(lambda x: x.normal_(2, 3), dtype, device), lambda p: normal.icdf(p) * 3 + 2, coarse)
    drawn = draw(lambda x: x.exponential_(2.0), dtype, device)
    assert drawn.min() > 0
    assert_quantiles(drawn, lambda p: -torch.log1p(-p) / 2, coarse)
    assert_quantiles(
        draw(lambda x: x.log_normal_(0.5, 0.25), dtype, device), lambda p: (normal.icdf(p) / 4 + 0.5).exp(), coarse
    )
    assert_quantiles(
        draw(lambda x: x.cauchy_(1, 2), dtype, device), lambda p: 1 + 2 * torch.tan(torch.pi * (p - 0.5)), coarse
    )


def test_numbers_of_float64_have_53_bits(device):
    drawn = draw(lambda x: x.uniform_(), torch.float64, device)
    assert (drawn * 2.0**53 == (drawn * 2.0**53).floor()).all()
    assert (drawn * 2.0**24 != (drawn * 2.0**24).floor()).double().mean() > 0.99
    assert drawn.unique().numel() == COUNT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.uint8])
def test_whole_numbers(device, dtype):
    drawn = draw(lambda x: x.random_(5, 105), dtype, device)
    assert drawn.min() == 5 and drawn.max() == 104 and drawn.unique().numel() == 100
    assert drawn.mean().sub(54.5).abs() < 5 * 28.9 / COUNT**0.5
    drawn = draw(lambda x: x.random_(10), dtype, device)
    assert torch.equal(drawn.unique(), torch.arange(10).double())
    drawn = draw(lambda x: x.random_(), dtype, device)
    last = 2.0**24 if dtype == torch.float32 else 2.0**53 if dtype == torch.float64 else float(torch.iinfo(dtype).max)
    assert 0 <= drawn.min() <= last / 100 and last * 0.99 <= drawn.max() <= last
    drawn = draw(lambda x: x.geometric_(0.25), dtype, device)
    assert drawn.min() == 1 and abs((drawn == 1).double().mean().item() - 0.25) < 0.02
    assert abs(drawn.mean().item() - 4) < 0.1


def test_ranges_as_wide_as_the_type(device):
    drawn = draw(lambda x: x.random_(-(2**63), 2**63 - 1), torch.int64, device)
    assert abs((drawn < 0).double().mean().item() - 0.5) < 0.02
    assert_quantiles(drawn, lambda p: (p - 0.5) * 2.0**64)
    drawn = draw(lambda x: x.random_(-(2**62), 2**63 - 1), torch.int64, device)
    assert drawn.min() >= -(2.0**62) and drawn.max() > 2.0**62


def test_bernoulli_and_dropout(device):
    share = draw(lambda x: x.bernoulli_(0.3), torch.float32, device)
    assert set(share.unique().tolist()) == {0, 1} and abs(share.mean().item() - 0.3) < 0.02
    p = torch.linspace(0, 1, COUNT, device=device)
    assert (
        draw(lambda x: x.bernoulli_(p), torch.float32, device).view(4, -1).mean(1) - torch.tensor([1, 3, 5, 7]) / 8
    ).abs().max() < 0.02
    torch_outboard.reset_coverage()
    x = torch.ones(COUNT, device=device, requires_grad=True)
    y = F.dropout(x, 0.25)
    y.sum().backward()
    drawn = torch.bernoulli(p)
    assert torch_outboard.coverage().calls() == torch_outboard.coverage().calls(provider="generated")
    assert drawn[0] == 0 and drawn[-1] == 1
    assert x.grad is not None and torch.equal(x.grad, y)
    kept = y.detach().cpu()
    assert abs((kept != 0).float().mean().item() - 0.75) < 0.02
    torch.testing.assert_close(kept.max(), torch.tensor(1 / 0.75))


def test_tensors_of_means_and_deviations(device):
    torch_outboard.reset_coverage()
    mean = torch.tensor([-5.0, 5.0], device=device).view(2, 1).expand(2, COUNT)
    std = torch.tensor([0.5, 2.0], device=device).view(2, 1).expand(2, COUNT)
    for drawn, deviations in ((torch.normal(mean, std), (0.5, 2.0)), (torch.normal(mean, 3.0), (3.0, 3.0))):
        got = drawn.cpu()
        torch.testing.assert_close(got.mean(1), torch.tensor([-5.0, 5.0]), atol=0.1, rtol=0)
        torch.testing.assert_close(got.std(1), torch.tensor(deviations), atol=0.1, rtol=0)
    assert abs(torch.normal(1.0, std).cpu().mean().item() - 1) < 0.05
    assert torch_outboard.coverage().calls(provider="generated") == torch_outboard.coverage().calls()


def test_multinomial(device):
    weights = torch.tensor([[1.0, 0.0, 3.0, 0.0], [0.0, 2.0, 1.0, 1.0]], device=device)
    torch_outboard.reset_coverage()
    drawn = torch.multinomial(weights, COUNT, replacement=True)
    single = torch.multinomial(weights, 1)
    assert torch_outboard.coverage().calls("aten::multinomial", "generated") == 2
    share = torch.stack([(drawn.cpu() == i).double().mean(1) for i in range(4)], 1)
    torch.testing.assert_close(share, (weights / 4).cpu().double(), atol=0.02, rtol=0)
    assert single.shape == (2, 1) and (weights.cpu().gather(1, single.cpu()) > 0).all()
    for bad in ([1.0, -1.0], [float("nan"), 1.0], [float("inf"), 1.0], [0.0, 0.0]):
        with pytest.raises(RuntimeError, match="probability tensor|invalid multinomial"):
            torch.multinomial(torch.tensor(bad, device=device), 1)
            torch.accelerator.synchronize()


def test_draws_that_are_not_put_back(device):
    weights = torch.tensor([1.0, 0.0, 3.0, 2.0], device=device).expand(COUNT, 4)
    torch_outboard.reset_coverage()
    drawn = torch.multinomial(weights, 3)
    assert torch_outboard.coverage().calls("aten::multinomial", "generated") == 1
    drawn = drawn.cpu()
    # Each element with a weight appears once, in an order with the
    # probabilities of successive draws.
    assert (drawn.sort(1).values == torch.tensor([0, 2, 3])).all()
    shares = [((drawn[:, 0] == i) & (drawn[:, 1] == j)).double().mean().item() for i, j in ((0, 2), (2, 3), (3, 0))]
    torch.testing.assert_close(shares, [1 / 6 * 3 / 5, 3 / 6 * 2 / 3, 2 / 6 * 1 / 4], atol=0.02, rtol=0)
    with pytest.raises(RuntimeError, match="not enough non-negative category"):
        torch.multinomial(torch.tensor([0.0, 1.0, 0.0], device=device), 2)
        torch.accelerator.synchronize()


def test_permutations(device):
    torch_outboard.reset_coverage()
    first, second = torch.randperm(1000, device=device), torch.randperm(1000, device=device)
    assert torch_outboard.coverage().calls("aten::randperm.generator_out", "generated") == 2, torch_outboard.coverage()
    assert torch.equal(first.cpu().sort().values, torch.arange(1000)) and not torch.equal(first.cpu(), second.cpu())
    at_first = torch.stack([torch.randperm(4, device=device).cpu() for _ in range(2000)])[:, 0]
    assert (at_first.bincount(minlength=4) - 500).abs().max() < 5 * (2000 * 3 / 16) ** 0.5


def test_the_seed_and_the_offset_decide(device):
    x = torch.empty(1000, device=device)
    torch.manual_seed(5)
    first, second = x.normal_().cpu(), x.normal_().cpu()
    assert not (first == second).any()
    torch.manual_seed(5)
    assert torch.equal(x.normal_().cpu(), first) and torch.equal(x.normal_().cpu(), second)
    # Of a longer tensor the first are the same, however its kernel shares the work.
    torch.manual_seed(5)
    assert torch.equal(torch.empty(5000, device=device).normal_().cpu()[:1000], first)
    torch.manual_seed(6)
    assert not (x.normal_().cpu() == first).any()


def test_a_generator_of_ones_own(device):
    own = torch.Generator(device).manual_seed(3)
    torch.manual_seed(1)
    want = torch.empty(100, device=device).uniform_().cpu()
    torch.manual_seed(1)
    own_numbers = torch.empty(100, device=device).uniform_(generator=own).cpu()
    assert torch.equal(torch.empty(100, device=device).uniform_().cpu(), want)
    assert torch.equal(torch.empty(100, device=device).uniform_(generator=own.manual_seed(3)).cpu(), own_numbers)
    assert not torch.equal(own_numbers, want)


def test_draws_do_not_depend_on_each_other(device):
    torch.manual_seed(0)
    draws = torch.stack([torch.empty(COUNT, device=device).normal_() for _ in range(8)]).cpu().double()
    assert draws.unique().numel() > 0.97 * draws.numel()
    off = torch.corrcoef(draws) - torch.eye(8)
    assert off.abs().max() < 5 / COUNT**0.5
    lagged = torch.stack([draws[0, : COUNT - 10], *[draws[0, lag : COUNT - 10 + lag] for lag in (1, 2, 3, 4, 8)]])
    assert (torch.corrcoef(lagged) - torch.eye(6)).abs().max() < 5 / COUNT**0.5


def test_other_bounds_need_no_other_plan(device):
    x = torch.empty(100, device=device)
    x.uniform_(-1, 1), x.random_(3, 8), x.bernoulli_(0.5)
    built = _C.built_plans()
    for bound in (0.125, 2.0, 300.0):
        assert x.uniform_(-bound, bound).cpu().abs().max().sub(bound).abs() < bound / 5
    assert x.random_(100, 120).cpu().min() >= 100
    assert x.bernoulli_(1.0).cpu().min() == 1 and x.bernoulli_(0.0).cpu().max() == 0
    assert _C.built_plans() == built


def test_bad_arguments_are_refused_at_the_call(device):
    x = torch.empty(10, device=device)
    x.uniform_(), x.normal_(), x.exponential_()
    for bad in (
        lambda: x.uniform_(2, 1),
        lambda: x.normal_(0, -1),
        lambda: x.exponential_(-1.0),
        lambda: x.random_(5, 5),
        lambda: x.bernoulli_(1.5),
        lambda: x.geometric_(1.0),
        lambda: x.cauchy_(0, -1),
        lambda: x.log_normal_(0, -1),
        lambda: torch.empty(3, device=device, dtype=torch.int64).uniform_(),
        lambda: x.uniform_(generator=torch.Generator()),
    ):
        with pytest.raises(RuntimeError):
            bad()


def test_each_replay_of_a_graph_draws_anew(device):
    module = torch.get_device_module(device)
    x = torch.empty(1000, device=device)
    x.uniform_(), x.bernoulli_(0.5)
    torch.manual_seed(9)
    want = [x.uniform_().cpu() for _ in range(4)]
    graph = module.Graph()
    torch.manual_seed(9)
    torch_outboard.reset_coverage()
    with module.graph(graph):
        first = torch.empty(1000, device=device).uniform_()
        second = torch.empty(1000, device=device).uniform_()
    assert torch_outboard.coverage().calls("aten::uniform_", "generated") == 2
    torch.manual_seed(9)
    got = []
    for _ in range(2):
        graph.replay()
        got += [first.cpu(), second.cpu()]
    # As eager calls from the same seed.
    assert all(map(torch.equal, got, want))
    assert not torch.equal(x.uniform_().cpu(), got[-1])


def test_a_compiled_function_draws_anew(device):
    @torch.compile
    def function(x):
        return F.dropout(x, 0.5), torch.rand_like(x)

    x = torch.ones(COUNT, device=device)
    torch.manual_seed(1)
    first, second = function(x), function(x)
    torch.manual_seed(1)
    again = function(x)
    assert all(map(torch.equal, map(torch.Tensor.cpu, first), map(torch.Tensor.cpu, again)))
    assert abs((first[0] == 0).float().mean().item() - 0.5) < 0.02
    assert abs(first[1].mean().item() - 0.5) < 0.02 and not (first[1] == second[1]).cpu().all()


@pytest.mark.parametrize("name", ["uniform_", "normal_", "random_"])
def test_as_many_dimensions_as_tensors_have(device, name):
    x = torch.zeros((1,) * 62 + (50, 40), device=device).transpose(-1, -2)
    getattr(x, name)()
    assert x.unique().numel() > 1900


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_dropout_is_one_launch_that_draws_as_bernoulli_does(
    dtype: torch.dtype, device: torch.device, tmp_path: Path
) -> None:
    x = torch.randn(60, 70).to(dtype)
    for p in (0.25, 0.5):
        torch.manual_seed(3)
        result, mask = torch.native_dropout(x.to(device), p, True)
        torch.manual_seed(3)
        drawn = torch.empty(x.shape, dtype=torch.bool, device=device).bernoulli_(1 - p)
        assert torch.equal(mask.cpu(), drawn.cpu()) and 0 < drawn.sum() < x.numel()
        exact = x.double() * drawn.cpu() / (1 - p)
        torch.testing.assert_close(result.cpu(), exact.to(dtype), atol=0, rtol=torch.finfo(dtype).eps)
    ours = x.to(device)
    launches = kernels(lambda: torch.nn.functional.dropout(ours, 0.3), device, tmp_path)
    if not launches:
        pytest.skip("capability: times of work, without which profiles show no kernels")
    assert len(launches) == 1, launches
