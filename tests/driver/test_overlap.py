# SPDX-License-Identifier: BSD-3-Clause
"""Arguments that overlap in memory: refused at the call if the CPU refuses them, otherwise accepted."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

INTERNAL = "more than one element of the written-to tensor refers to a single memory location"
BETWEEN = "some elements of the input tensor and the written-to tensor refer to a single memory location"

Call = Callable[[torch.device], object]


def numbers(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32, device=device).reshape(shape)


def expanded(device: torch.device) -> torch.Tensor:
    return torch.ones(1, device=device).expand(4)


def ascending(device: torch.device) -> torch.Tensor:
    return torch.tensor([0, 1, 2], device=device)


def shifted(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    x = numbers(device, 10)
    return x[1:], x[:-1]


def assign(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    target[:] = source
    return target


def same(x: torch.Tensor, call: Callable[[torch.Tensor], object]) -> object:
    return call(x)


REFUSED: dict[str, tuple[str, Call]] = {
    "copy_ of a shifted range": (BETWEEN, lambda d: torch.Tensor.copy_(*shifted(d))),
    "assignment of a shifted range": (BETWEEN, lambda d: assign(*shifted(d))),
    "copy_ of the transposed": (BETWEEN, lambda d: same(numbers(d, 3, 3), lambda x: x.copy_(x.t()))),
    "copy_ of a large shifted range": (BETWEEN, lambda d: same(numbers(d, 1 << 16), lambda x: x[1:].copy_(x[:-1]))),
    "copy_ to an expanded one": (INTERNAL, lambda d: expanded(d).copy_(numbers(d, 4))),
    "copy_ from the host to an expanded one": (INTERNAL, lambda d: expanded(d).copy_(torch.ones(4))),
    "add_ of a shifted range": (BETWEEN, lambda d: torch.Tensor.add_(*shifted(d))),
    "add_ to an expanded one": (INTERNAL, lambda d: expanded(d).add_(1)),
    "mul_ by an expanded one": (INTERNAL, lambda d: expanded(d).mul_(expanded(d))),
    "add into a shifted range": (BETWEEN, lambda d: partial_out(d, torch.add)),
    "exp into a shifted range": (BETWEEN, lambda d: same(numbers(d, 10), lambda x: torch.exp(x[:-1], out=x[1:]))),
    "exp into an expanded one": (INTERNAL, lambda d: torch.exp(numbers(d, 4), out=expanded(d))),
    "exp_ of an expanded one": (INTERNAL, lambda d: expanded(d).exp_()),
    "uniform_ of an expanded one": (INTERNAL, lambda d: expanded(d).uniform_()),
    "cumsum_ of an expanded one": (INTERNAL, lambda d: expanded(d).cumsum_(0)),
    "mm into an expanded one": (
        INTERNAL,
        lambda d: torch.mm(numbers(d, 2, 2), numbers(d, 2, 2), out=numbers(d, 1, 2).expand(2, 2)),
    ),
    "cat into one of them": (BETWEEN, lambda d: same(numbers(d, 8), lambda x: torch.cat([x[:2], x[2:4]], out=x[:4]))),
    "gather into its source": (
        BETWEEN,
        lambda d: same(numbers(d, 3), lambda x: torch.gather(x, 0, ascending(d), out=x)),
    ),
    "index_select into its source": (
        BETWEEN,
        lambda d: same(numbers(d, 3), lambda x: torch.index_select(x, 0, ascending(d), out=x)),
    ),
    "index_add_ of itself": (BETWEEN, lambda d: same(numbers(d, 3), lambda x: x.index_add_(0, ascending(d), x))),
    "index_copy_ of itself": (BETWEEN, lambda d: same(numbers(d, 3), lambda x: x.index_copy_(0, ascending(d), x))),
    "scatter_ of itself": (BETWEEN, lambda d: same(numbers(d, 3), lambda x: x.scatter_(0, ascending(d), x))),
    "scatter_ to an expanded one": (INTERNAL, lambda d: expanded(d).scatter_(0, ascending(d), 1.0)),
    "put_ of itself": (BETWEEN, lambda d: same(numbers(d, 3), lambda x: x.put_(ascending(d), x))),
    "take into its source": (BETWEEN, lambda d: same(numbers(d, 3), lambda x: torch.take(x, ascending(d), out=x))),
    "index_put_ of itself": (BETWEEN, lambda d: same(numbers(d, 3), lambda x: x.index_put_((ascending(d),), x))),
    "masked_scatter_ to an expanded one": (
        INTERNAL,
        lambda d: expanded(d).masked_scatter_(numbers(d, 4) > 1, numbers(d, 4)),
    ),
    "masked_select into its source": (
        BETWEEN,
        lambda d: same(numbers(d, 4), lambda x: torch.masked_select(x, x > 0, out=x)),
    ),
    "gather into a part of the index that is resized": (
        BETWEEN,
        lambda d: same(torch.tensor([2, 1, 0], device=d), lambda x: torch.gather(x.clone(), 0, x[1:], out=x[:1])),
    ),
    "cat into an argument that is resized": (
        BETWEEN,
        lambda d: same(numbers(d, 4, 6), lambda x: torch.cat([x, numbers(d, 4, 6)], out=x)),
    ),
    "kthvalue into its source": (
        BETWEEN,
        lambda d: same(
            numbers(d, 10), lambda x: torch.kthvalue(x, 5, out=(x, torch.empty((), dtype=torch.int64, device=d)))
        ),
    ),
    "fill_ of an expanded one by a tensor": (
        INTERNAL,
        lambda d: expanded(d).fill_(torch.tensor(2.0, device=d)),
    ),
    "max into its source": (
        BETWEEN,
        lambda d: same(numbers(d, 12), lambda x: torch.max(x[:8].view(2, 4), 0, out=(x[6:10], ascending(d)))),
    ),
}


def partial_out(device: torch.device, call: Callable[..., object]) -> object:
    x = numbers(device, 10)
    return call(x[:-1], 1, out=x[1:])


ACCEPTED: dict[str, Call] = {
    "fill_ of an expanded one": lambda d: expanded(d).fill_(2),
    "fill_ of a row for each element": lambda d: numbers(d, 3)[:, None].expand(3, 4).fill_(2),
    "fill_ of expanded bools": lambda d: torch.zeros(1, dtype=torch.bool, device=d).expand(4).fill_(-1),
    "zero_ of an expanded one": lambda d: expanded(d).zero_(),
    "add_ of itself": lambda d: same(numbers(d, 4), lambda x: x.add_(x)),
    "add_ of a view of all of itself": lambda d: same(numbers(d, 4), lambda x: x.add_(x[:])),
    "add into an argument": lambda d: same(numbers(d, 4), lambda x: torch.add(x, x, out=x)),
    "copy_ of itself": lambda d: same(numbers(d, 4), lambda x: x.copy_(x)),
    "copy_ of a view of all of itself": lambda d: same(numbers(d, 4), lambda x: x.copy_(x[:])),
    "copy_ of ranges apart": lambda d: same(numbers(d, 8), lambda x: (x[:4].copy_(x[4:]), x)[1]),
    "copy_ of an expanded source": lambda d: numbers(d, 4).copy_(expanded(d)),
    "mm of ones into an argument": lambda d: same(torch.zeros(3, 3, device=d), lambda x: torch.mm(x, x, out=x)),
    "exp into a range apart": lambda d: same(numbers(d, 8), lambda x: (torch.exp(x[:4], out=x[4:]), x)[1]),
    "add_ between columns": lambda d: same(numbers(d, 4, 4), lambda x: (x[:, 0].add_(x[:, 1]), x)[1]),
    "sum into an expanded one": lambda d: torch.sum(numbers(d, 3, 4), 0, out=expanded(d)),
    "scatter into its source": lambda d: same(numbers(d, 3), lambda x: torch.scatter(x, 0, ascending(d), 2.0, out=x)),
    "an out= of no elements that is a view": lambda d: torch.add(numbers(d, 3), 1, out=torch.empty(4, device=d)[:0]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_overlap_is_refused_at_the_call(device: torch.device, name: str) -> None:
    message, call = REFUSED[name]
    with pytest.raises(RuntimeError, match=re.escape(message)):
        call(torch.device("cpu"))
    with pytest.raises(RuntimeError, match=re.escape(message)):
        call(device)
    torch.accelerator.synchronize(device)  # nothing was queued that fails later


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_overlap_that_torch_accepts_gives_its_result(device: torch.device, name: str) -> None:
    expected, result = ACCEPTED[name](torch.device("cpu")), ACCEPTED[name](device)
    assert isinstance(expected, torch.Tensor) and isinstance(result, torch.Tensor)
    torch.testing.assert_close(result.cpu(), expected)


def test_a_refused_call_leaves_its_arguments(device: torch.device) -> None:
    x = numbers(device, 10)
    with pytest.raises(RuntimeError, match=BETWEEN):
        x[1:].add_(x[:-1])
    assert torch.equal(x.cpu(), numbers(torch.device("cpu"), 10))


def test_an_overlap_that_torch_cannot_tell_is_copied_as_one_of_its_orders(device: torch.device) -> None:
    # Rows with gaps: torch doesn't look, and the order of its copies isn't defined.
    x = torch.arange(6.0, device=device).repeat(5, 1)
    x[:, 1:] = x[:, :-1]
    assert all(row.tolist() in ([0, 0, 1, 2, 3, 4], [0.0] * 6) for row in x.cpu())


def test_a_copy_between_shapes_that_do_not_fit_raises_torchs_error(device: torch.device) -> None:
    for source in (torch.ones(5), torch.ones(2, 4, 3)):
        with pytest.raises(RuntimeError) as expected:
            torch.zeros(4, 3).copy_(source)
        for operand in (source, source.to(device)):
            with pytest.raises(RuntimeError, match=re.escape(str(expected.value))):
                torch.zeros(4, 3, device=device).copy_(operand)
