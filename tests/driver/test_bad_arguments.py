# SPDX-License-Identifier: BSD-3-Clause
"""Bad arguments raise at the call, with the CPU's type and words, even while work is queued.

The same holds after a call with good arguments, whose shape is then known.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

Call = Callable[[torch.device], object]


def floats(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.ones(shape, device=device)


def doubles(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64, device=device)


def integers(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int32, device=device)


def truths(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bool, device=device)


def complexes(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.complex64, device=device)


def at(device: torch.device, *indices: int) -> torch.Tensor:
    return torch.tensor(indices, device=device)


# A good call and a bad one. If a number is wrong, the metadata of both are the same.
NUMBERS: dict[str, tuple[Call, Call]] = {
    "uniform_": (lambda d: floats(d, 3).uniform_(1, 5), lambda d: floats(d, 3).uniform_(5, 1)),
    "uniform_ to nan": (lambda d: floats(d, 3).uniform_(1, 5), lambda d: floats(d, 3).uniform_(0, float("nan"))),
    "uniform_ to infinity": (lambda d: floats(d, 3).uniform_(1, 5), lambda d: floats(d, 3).uniform_(0, float("inf"))),
    "uniform_ beyond float16": (
        lambda d: floats(d, 3).half().uniform_(),
        lambda d: floats(d, 3).half().uniform_(0, 1e6),
    ),
    "normal_": (lambda d: floats(d, 3).normal_(0, 1), lambda d: floats(d, 3).normal_(0, -1)),
    "normal": (lambda d: torch.normal(floats(d, 3), 1.0), lambda d: torch.normal(floats(d, 3), -1.0)),
    "exponential_": (lambda d: floats(d, 3).exponential_(), lambda d: floats(d, 3).exponential_(-1)),
    "exponential_ of nan": (lambda d: floats(d, 3).exponential_(), lambda d: floats(d, 3).exponential_(float("nan"))),
    "geometric_": (lambda d: floats(d, 3).geometric_(0.5), lambda d: floats(d, 3).geometric_(2)),
    "cauchy_": (lambda d: floats(d, 3).cauchy_(), lambda d: floats(d, 3).cauchy_(0, -1)),
    "log_normal_": (lambda d: floats(d, 3).log_normal_(), lambda d: floats(d, 3).log_normal_(0, -1)),
    "bernoulli_": (lambda d: floats(d, 3).bernoulli_(0.5), lambda d: floats(d, 3).bernoulli_(1.5)),
    "bernoulli": (lambda d: torch.bernoulli(floats(d, 3), 0.5), lambda d: torch.bernoulli(floats(d, 3), -0.5)),
    "native_dropout": (
        lambda d: torch.native_dropout(floats(d, 3), 0.5, True),
        lambda d: torch.native_dropout(floats(d, 3), 1.5, True),
    ),
    "random_": (lambda d: floats(d, 3).random_(1, 5), lambda d: floats(d, 3).random_(5, 1)),
    "random_ to": (lambda d: floats(d, 3).random_(5), lambda d: floats(d, 3).random_(0)),
    "random_ beyond int32": (lambda d: integers(d, 3).random_(5), lambda d: integers(d, 3).random_(1 << 40)),
    "random_ below uint8": (
        lambda d: torch.ones(3, dtype=torch.uint8, device=d).random_(0, 5),
        lambda d: torch.ones(3, dtype=torch.uint8, device=d).random_(-1, 5),
    ),
    "random_ of bools": (lambda d: truths(d, 3).random_(2), lambda d: truths(d, 3).random_(3)),
    "randint": (lambda d: torch.randint(2, 5, (3,), device=d), lambda d: torch.randint(5, 2, (3,), device=d)),
    "multinomial": (lambda d: torch.multinomial(floats(d, 3), 2), lambda d: torch.multinomial(floats(d, 3), 5)),
    "multinomial of none": (lambda d: torch.multinomial(floats(d, 3), 2), lambda d: torch.multinomial(floats(d, 3), 0)),
    "clamp beyond int32": (lambda d: integers(d, 3).clamp(max=5), lambda d: integers(d, 3).clamp(max=1 << 40)),
    "clamp_min beyond float16": (
        lambda d: floats(d, 3).half().clamp_min(5),
        lambda d: floats(d, 3).half().clamp_min(1e6),
    ),
    "masked_fill beyond int32": (
        lambda d: integers(d, 3).masked_fill(truths(d, 3), 5),
        lambda d: integers(d, 3).masked_fill(truths(d, 3), 1 << 40),
    ),
    "pow beyond int32": (lambda d: integers(d, 3).pow(5), lambda d: integers(d, 3).pow(1 << 40)),
    "hardtanh beyond float16": (
        lambda d: functional.hardtanh(floats(d, 3).half(), 0, 5),
        lambda d: functional.hardtanh(floats(d, 3).half(), 0, 1e6),
    ),
    "add of a product beyond int32": (
        lambda d: torch.add(integers(d, 3), integers(d, 3), alpha=5),
        lambda d: torch.add(integers(d, 3), integers(d, 3), alpha=1 << 40),
    ),
    "_foreach_clamp_max_ beyond int32": (
        lambda d: torch._foreach_clamp_max_([integers(d, 3)], 5),
        lambda d: torch._foreach_clamp_max_([integers(d, 3)], 1 << 40),
    ),
    "sub of a bool": (lambda d: torch.sub(integers(d, 3), 1), lambda d: torch.sub(integers(d, 3), True)),
    "pow_": (lambda d: integers(d, 3).pow_(2), lambda d: integers(d, 3).pow_(-1)),
    "pow": (lambda d: integers(d, 3).pow(2), lambda d: integers(d, 3).pow(-1)),
    "softshrink": (
        lambda d: functional.softshrink(floats(d, 3), 0.5),
        lambda d: functional.softshrink(floats(d, 3), -0.5),
    ),
    "smooth_l1_loss": (
        lambda d: functional.smooth_l1_loss(floats(d, 3), floats(d, 3), beta=1.0),
        lambda d: torch.ops.aten.smooth_l1_loss(floats(d, 3), floats(d, 3), 1, -1.0),
    ),
    "add of bools by a float": (
        lambda d: torch.add(truths(d, 3), truths(d, 3), alpha=1),
        lambda d: torch.add(truths(d, 3), truths(d, 3), alpha=1.1),
    ),
    "add_ of integers by a bool": (
        lambda d: integers(d, 3).add_(integers(d, 3), alpha=2),
        lambda d: integers(d, 3).add_(integers(d, 3), alpha=True),
    ),
    "sub of integers by a float": (
        lambda d: torch.sub(integers(d, 3), integers(d, 3), alpha=2),
        lambda d: torch.sub(integers(d, 3), integers(d, 3), alpha=1.5),
    ),
    "add_ of a float to integers": (
        lambda d: torch.ones(3, dtype=torch.uint8, device=d).add_(1),
        lambda d: torch.ones(3, dtype=torch.uint8, device=d).add_(1.5),
    ),
    "mul_ of floats by a complex number": (lambda d: floats(d, 3).mul_(2.0), lambda d: floats(d, 3).mul_(2j)),
}

BAD: dict[str, Call] = {
    "_assert_async of nothing": lambda d: torch._assert_async(floats(d, 0)),
    "_assert_async of two elements": lambda d: torch._assert_async(truths(d, 2), "a message"),
    # Dtypes that have to be the same.
    "mm": lambda d: torch.mm(floats(d, 2, 2), doubles(d, 2, 2)),
    "addmm": lambda d: torch.addmm(floats(d, 2, 2), floats(d, 2, 2), doubles(d, 2, 2)),
    "addmm_": lambda d: floats(d, 2, 2).addmm_(doubles(d, 2, 2), doubles(d, 2, 2)),
    "addmv": lambda d: torch.addmv(floats(d, 2), floats(d, 2, 2), doubles(d, 2)),
    "bmm": lambda d: torch.bmm(floats(d, 2, 2, 2), doubles(d, 2, 2, 2)),
    "baddbmm": lambda d: torch.baddbmm(floats(d, 2, 2, 2), floats(d, 2, 2, 2), doubles(d, 2, 2, 2)),
    "addbmm": lambda d: torch.addbmm(floats(d, 2, 2), floats(d, 2, 2, 2), doubles(d, 2, 2, 2)),
    "dot": lambda d: torch.dot(floats(d, 2), doubles(d, 2)),
    "linear": lambda d: functional.linear(floats(d, 2, 3), doubles(d, 4, 3)),
    "linear of three dimensions": lambda d: functional.linear(floats(d, 2, 2, 3), doubles(d, 4, 3)),
    "linear with a bias": lambda d: functional.linear(floats(d, 2, 3), floats(d, 4, 3), doubles(d, 4)),
    "conv1d": lambda d: functional.conv1d(floats(d, 1, 2, 5), doubles(d, 3, 2, 3)),
    "conv2d": lambda d: functional.conv2d(floats(d, 1, 2, 5, 5), doubles(d, 3, 2, 3, 3)),
    "conv2d with a bias": lambda d: functional.conv2d(floats(d, 1, 2, 5, 5), floats(d, 3, 2, 3, 3), doubles(d, 3)),
    "conv_transpose2d": lambda d: functional.conv_transpose2d(floats(d, 1, 2, 5, 5), doubles(d, 2, 3, 3, 3)),
    "neg(out=)": lambda d: torch.neg(doubles(d, 2), out=floats(d, 2)),
    "all(out=)": lambda d: torch.all(floats(d, 2), out=torch.empty((), device=d)),
    "any(out=) over a dimension": lambda d: torch.any(floats(d, 2, 2), 0, out=floats(d, 2)),
    "index_put_ of another dtype": lambda d: floats(d, 4, 3).index_put_((at(d, 0, 1),), doubles(d, 2, 3)),
    "index_copy_ of another dtype": lambda d: floats(d, 4, 3).index_copy_(0, at(d, 0), doubles(d, 1, 3)),
    "cross_entropy of int32 targets": lambda d: functional.cross_entropy(floats(d, 2, 3), integers(d, 2)),
    "cross_entropy of pictures": lambda d: functional.cross_entropy(floats(d, 1, 3, 2, 2), integers(d, 1, 2, 2)),
    "nll_loss with a weight": lambda d: functional.nll_loss(floats(d, 2, 3), at(d, 0, 1), doubles(d, 3)),
    # Dtypes that have no kernel.
    "bitwise_and_": lambda d: floats(d, 3).bitwise_and_(floats(d, 3)),
    "bitwise_not": lambda d: torch.bitwise_not(floats(d, 3)),
    "bitwise_left_shift of bools": lambda d: torch.bitwise_left_shift(truths(d, 3), truths(d, 3)),
    "gcd": lambda d: torch.gcd(floats(d, 3), floats(d, 3)),
    "lerp": lambda d: torch.lerp(integers(d, 3), integers(d, 3), 0.5),
    "softmax": lambda d: torch.softmax(integers(d, 3), 0),
    "gelu": lambda d: functional.gelu(integers(d, 3)),
    "maximum": lambda d: torch.maximum(complexes(d, 3), complexes(d, 3)),
    "sort": lambda d: complexes(d, 3).sort(),
    "floor": lambda d: torch.floor(truths(d, 3)),
    "uniform_ of integers": lambda d: integers(d, 3).uniform_(),
    "normal_ of integers": lambda d: integers(d, 3).normal_(),
    "random_ of complex numbers": lambda d: complexes(d, 3).random_(3),
    "random_ of complex numbers without bounds": lambda d: complexes(d, 3).random_(),
    "cauchy_ of integers": lambda d: integers(d, 3).cauchy_(),
    "exponential_ of truths": lambda d: truths(d, 3).exponential_(),
    "log_normal_ of complex numbers": lambda d: complexes(d, 3).log_normal_(),
    "geometric_ of truths": lambda d: truths(d, 3).geometric_(0.5),
    "bernoulli_ of complex numbers": lambda d: complexes(d, 3).bernoulli_(),
    "bernoulli of integers": lambda d: torch.bernoulli(integers(d, 3)),
    "multinomial of integers": lambda d: torch.multinomial(integers(d, 3), 1),
    "var": lambda d: integers(d, 3).var(),
    # Shapes and indices.
    "index_put_ of other shapes": lambda d: floats(d, 4, 3).index_put_((at(d, 0, 1),), floats(d, 3, 3)),
    "index_put_ at indices of other shapes": lambda d: floats(d, 4, 3).index_put_(
        (at(d, 0, 1), at(d, 0, 1, 2)), floats(d, 2)
    ),
    "index_put_ that accumulates": lambda d: floats(d, 4, 3).index_put_((at(d, 0),), floats(d, 2, 2), accumulate=True),
    "index of nothing": lambda d: torch.empty(0, 3, device=d)[at(d, 0)],
    "index_select at two dimensions": lambda d: floats(d, 4, 3).index_select(0, at(d, 0, 1)[None]),
    "index_select at floats": lambda d: floats(d, 4, 3).index_select(0, floats(d, 2)),
    "index_select of a number": lambda d: floats(d).index_select(0, at(d, 0, 0)),
    "index_reduce_ of other shapes": lambda d: floats(d, 4, 3).index_reduce_(0, at(d, 0, 1), floats(d, 3, 3), "mean"),
    "index_reduce_ by another name": lambda d: floats(d, 4, 3).index_reduce_(0, at(d, 0, 1), floats(d, 2, 3), "sum"),
    "index_reduce_ of another dtype": lambda d: floats(d, 4, 3).index_reduce_(0, at(d, 0, 1), doubles(d, 2, 3), "mean"),
    "index_fill_ at floats": lambda d: floats(d, 4, 3).index_fill_(0, floats(d, 1), 1),
    "index_fill_ with a complex number": lambda d: floats(d, 4, 3).index_fill_(0, at(d, 0), 1j),
    "put_ of other sizes": lambda d: floats(d, 4, 3).put_(at(d, 0, 1), floats(d, 3)),
    "put_ into nothing": lambda d: torch.empty(0, device=d).put_(at(d, 0), floats(d, 1)),
    "masked_fill_ by integers": lambda d: floats(d, 3).masked_fill_(integers(d, 3), 1),
    "max over nothing": lambda d: torch.empty(2, 0, device=d).max(1),
    "min over nothing": lambda d: torch.empty(2, 0, device=d).min(1),
    "median over nothing": lambda d: torch.empty(2, 0, device=d).median(1),
    "conv1d with a dilation of 0": lambda d: functional.conv1d(floats(d, 1, 2, 5), floats(d, 3, 2, 3), dilation=0),
    "complex of two dtypes": lambda d: torch.complex(floats(d, 2), doubles(d, 2)),
    "complex(out=)": lambda d: torch.complex(doubles(d, 2), doubles(d, 2), out=complexes(d, 2)),
    "aminmax(out=)": lambda d: torch.aminmax(floats(d, 2, 2), dim=0, out=(doubles(d, 2), doubles(d, 2))),
    "masked_scatter_ by bytes": lambda d: floats(d, 3).masked_scatter_(truths(d, 3).byte(), floats(d, 3)),
    "multinomial(out=)": lambda d: torch.multinomial(floats(d, 3), 2, out=doubles(d, 2)),
    "max of nothing": lambda d: torch.empty(0, device=d).max(),
    "masked_fill_ with a complex number": lambda d: floats(d, 3).masked_fill_(truths(d, 3), 1j),
    "grid_sampler_2d_backward in space": lambda d: torch.ops.aten.grid_sampler_2d_backward(
        floats(d, 1, 1, 2, 2), floats(d, 1, 1, 3, 3), floats(d, 1, 2, 2, 3), 0, 0, False, [True, True]
    ),
    "bucketize into two dimensions": lambda d: torch.bucketize(floats(d, 3), floats(d, 2, 2)),
    "binary_cross_entropy": lambda d: functional.binary_cross_entropy(floats(d, 3), doubles(d, 3)),
    "leaky_relu_backward": lambda d: torch.ops.aten.leaky_relu_backward(floats(d, 3), floats(d, 3), -1.0, True),
    "add(out=)": lambda d: torch.add(floats(d, 3), floats(d, 3), out=integers(d, 3)),
    "mul_ of truths by integers": lambda d: truths(d, 3).mul_(integers(d, 3)),
    "sqrt_ of integers": lambda d: integers(d, 3).sqrt_(),
    "mode over nothing": lambda d: torch.empty(2, 0, device=d).mode(1),
}


def assert_raises_as_on_the_cpu(device: torch.device, call: Call) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011
        call(torch.device("cpu"))
    with pytest.raises(expected.type) as raised:
        call(device)
    assert raised.type is expected.type
    assert str(raised.value).startswith(str(expected.value).partition("\n")[0])
    torch.accelerator.synchronize(device)  # nothing is left that fails later


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_raise_at_the_call(device: torch.device, name: str) -> None:
    assert_raises_as_on_the_cpu(device, BAD[name])


if torch.__version__ >= "2.15":  # there bounds beyond an integer type have no effect
    for of_clamp in ("clamp beyond int32", "_foreach_clamp_max_ beyond int32"):
        del NUMBERS[of_clamp]


@pytest.mark.parametrize("name", NUMBERS)
def test_bad_numbers_raise_at_the_call_behind_good_ones(device: torch.device, name: str) -> None:
    good, bad = NUMBERS[name]
    good(device)
    assert_raises_as_on_the_cpu(device, bad)
    good(device)
    torch.accelerator.synchronize(device)


def test_a_bad_call_leaves_its_arguments_and_the_generators(device: torch.device) -> None:
    values = floats(device, 3)
    torch.manual_seed(7)
    expected = torch.rand(3), torch.rand(3, device=device).cpu()
    torch.manual_seed(7)
    with pytest.raises(RuntimeError, match="uniform_ expects to return"):
        values.uniform_(5, 1)
    assert values.tolist() == [1, 1, 1]
    assert torch.equal(torch.rand(3), expected[0])
    assert torch.equal(torch.rand(3, device=device).cpu(), expected[1])


def test_indices_of_all_kinds_put_what_the_cpu_puts(device: torch.device) -> None:
    def put(on: torch.device, *indices: torch.Tensor | None) -> torch.Tensor:
        target = torch.zeros(3, 4, 5, device=on)
        moved = [None if index is None else index.to(on) for index in indices]
        return torch.ops.aten.index_put(target, moved, torch.tensor(2.0, device=on)).cpu()

    cpu = torch.device("cpu")
    rows, column, mask = torch.tensor([[0], [2]]), torch.tensor([1, 3]), torch.tensor([True, False, True])
    for indices in (
        (rows,),
        (rows, column),
        (None, column),
        (column[:1], None, column),
        (mask,),
        (mask, None, column[:1]),
    ):
        assert torch.equal(put(device, *indices), put(cpu, *indices))


def test_a_number_may_stand_where_another_overload_has_a_tensor(device):
    x = torch.tensor([3.0, 4.0], device=device)
    assert torch.equal((2 % x).cpu(), torch.tensor([2.0, 2.0]))
    assert torch.equal(torch.remainder(5.0, x).cpu(), torch.tensor([2.0, 1.0]))
    assert torch.equal((2**x).cpu(), torch.tensor([8.0, 16.0]))
