# SPDX-License-Identifier: BSD-3-Clause
"""A new number needs no new plan, and the records of calls are bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import torch_outboard
from torch_outboard import _C
from torch_outboard.kernels import refused_operators

MATRIX = torch.randn(33, 35)
IMAGE = torch.randn(1, 2, 9, 11)
WIDE = torch.randn(1, 2, 15, 11)  # sums of all gradients for 4 to 29 channels have one order of magnitude

CALLS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "arange": lambda x, n: torch.arange(n, device=x.device),
    "arange of floats": lambda x, n: torch.arange(0.25, 0.25 + n * 0.5, 0.5, device=x.device),
    "arange with a step": lambda x, n: torch.arange(n, 9 * n, n, device=x.device),
    "clamp": lambda x, n: x.clamp(-n * 0.1, n * 0.1),
    "clamp_min_": lambda x, n: x.clone().clamp_min_(n * 0.1),
    "convolution_backward, the sizes of the bias": lambda x, n: torch.ops.aten.convolution_backward(
        *(torch.ones(1, n, 15, 11).to(x.device), WIDE.to(x.device), torch.ones(n, 2, 1, 1).to(x.device), [n]),
        *([1, 1], [0, 0], [1, 1], False, [0, 0], 1, (False, False, True)),
    )[2],
    "constant_pad_nd": lambda x, n: F.pad(x, [n, 2]),
    "eye": lambda x, n: torch.eye(n, device=x.device),
    "interpolate": lambda x, n: F.interpolate(IMAGE.to(x.device), (n, n + 2), mode="bilinear"),
    "linspace": lambda x, n: torch.linspace(0, n, n, device=x.device),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n * 0.1),
    "pow": lambda x, n: x.abs() ** (1.03 + n * 0.02),
    "randperm": lambda x, n: torch.randperm(n, device=x.device).sort().values,
    "roll": lambda x, n: x.roll((n, -n), (0, 1)),
    "topk": lambda x, n: x.topk(n).values,
    "tril": lambda x, n: x.tril(n - 15),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_new_number_is_no_new_plan(name: str, device: torch.device) -> None:
    call, x = CALLS[name], MATRIX.to(device)
    for n in (4, 17):
        call(x, n)
    before = _C.built_plans()
    for n in range(5, 30, 4):
        torch.testing.assert_close(call(x, n).cpu(), call(MATRIX, n))
    assert _C.built_plans() == before


def test_a_number_needs_no_memory(device: torch.device) -> None:
    """A launch passes a number or a CPU tensor without dimensions by value, without a fill of its own."""
    x = MATRIX.to(device)
    module = torch.get_device_module(device)
    calls = [lambda n: x.add_(n), lambda n: x.mul_(n * 0.5), lambda n: x.sub_(torch.tensor(n, dtype=torch.int16))]
    for call in calls:
        call(3)
    before = module.memory_stats(device)["allocation.all.allocated"]
    for call in calls:
        call(7)
    assert module.memory_stats(device)["allocation.all.allocated"] == before
    expected = MATRIX + 3
    expected = ((expected * 1.5 - 3 + 7) * 3.5) - 7
    torch.testing.assert_close(x.cpu(), expected)


def test_numbers_with_a_case_of_their_own(device: torch.device) -> None:
    x = MATRIX.to(device)
    for n in (0, 1, 2, 33, 40, -1, -40):
        for call in (lambda x, n: x.tril(n), lambda x, n: x.triu(n), lambda x, n: x.roll(n, 1)):
            torch.testing.assert_close(call(x, n).cpu(), call(MATRIX, n))
    for n in (0, 1, 2):
        for name in ("arange", "arange of floats", "eye", "linspace", "randperm"):
            torch.testing.assert_close(CALLS[name](x, n).cpu(), CALLS[name](MATRIX, n))
    for exponent in (0, 0.5, 1, 2, -2, 3, 2.5, -1, 7):
        torch.testing.assert_close((x**exponent).cpu(), MATRIX**exponent, equal_nan=True)
    whole = torch.arange(-4, 9, dtype=torch.int16)
    for exponent in (0, 1, 2, 5, 2.5, 0.5):
        torch.testing.assert_close((whole.to(device) ** exponent).cpu(), whole**exponent, equal_nan=True)


def test_a_kernel_that_is_for_one_number_is_not_used_for_another(device: torch.device) -> None:
    x = MATRIX.to(device)
    for k in (0, 1, 35, 5, 34, 6):
        torch.testing.assert_close(x.topk(k).values.cpu(), MATRIX.topk(k).values)
    with pytest.raises(RuntimeError, match="out of range"):
        x.topk(36)


@pytest.mark.filterwarnings("ignore")
def test_refused_calls_take_no_room_from_others(device: torch.device) -> None:
    halves = torch.rand(3, dtype=torch.float16).to(device)
    for number in range(1, 1100):
        torch.logit(halves, number / 4096)
    assert any(operator == "aten::logit" for operator, _ in refused_operators())
    before = _C.built_plans()
    x = torch.rand(2, 5)
    torch.testing.assert_close(torch.logit(x.to(device), 0.25).cpu(), torch.logit(x, 0.25))
    assert _C.built_plans() > before


def test_masks_take_no_number(device: torch.device) -> None:
    """With a mask, a generated kernel fills in any number that fits the tensor's type."""
    x = MATRIX.to(device)
    torch_outboard.reset_coverage()
    for number in (100.0, 127.5, -1e9, float("-inf"), 300):
        torch.testing.assert_close(x.masked_fill(x > 1, number).cpu(), MATRIX.masked_fill(MATRIX > 1, number))
    assert {row.provider for row in torch_outboard.coverage()} == {"generated"}, torch_outboard.coverage()


def test_any_real_number_is_a_bool(device: torch.device) -> None:
    """A bool takes numbers that are neither 0 nor 1: they convert to True, without overflow."""
    mask = torch.tensor([True, False, False, True, False])
    index = torch.tensor([1, 3])
    bools, x = torch.zeros(5, dtype=torch.bool), torch.zeros(5, dtype=torch.bool, device=device)
    torch_outboard.reset_coverage()
    for number in (-1, 0, 2, 300, -0.25, float("nan"), 2.0**40):
        expected = [bools.masked_fill(mask, number), bools.index_fill(0, index, number), bools.clone().fill_(number)]
        results = [x.masked_fill(mask.to(device), number), x.index_fill(0, index.to(device), number)]
        results.append(x.new_empty(1).expand(5).fill_(number))
        assert [tensor.tolist() for tensor in results] == [tensor.tolist() for tensor in expected], number
    assert not [row for row in torch_outboard.coverage() if row.provider in ("host", "fallback")]
