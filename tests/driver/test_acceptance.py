# SPDX-License-Identifier: BSD-3-Clause
"""Every provider refuses at the call what the CPU's kernel refuses, and runs what that kernel accepts.

The answers of the meta kernel change neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

Call = Callable[[torch.device], Any]


def numbers(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def indices(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=device)


def narrow(device: torch.device) -> torch.Tensor:
    return numbers(device, 3, dtype=torch.int8)


# By the mistake. Meta kernels accept some of them, and decompositions accept others.
REFUSED: dict[str, Call] = {
    "a source smaller than the index": lambda d: numbers(d, 5, 4).scatter_add(0, indices(d, 3, 4), numbers(d, 2, 2)),
    "a source smaller than the index, greatest": lambda d: numbers(d, 5, 4).scatter_reduce(
        0, indices(d, 3, 4), numbers(d, 2, 2), "amax"
    ),
    "padding beyond the size": lambda d: F.pad(numbers(d, 1, 3), (3, 3), mode="reflect"),
    "replicated padding of nothing": lambda d: F.pad(numbers(d, 1, 0), (1, 1), mode="replicate"),
    "batches of different length": lambda d: torch.addbmm(numbers(d, 3, 5), numbers(d, 2, 3, 4), numbers(d, 3, 4, 5)),
    "a bias that doesn't expand": lambda d: torch.addmm(numbers(d, 4), numbers(d, 2, 3), numbers(d, 3, 5)),
    "a range without numbers": lambda d: torch.histc(numbers(d, 5), 4, min=3, max=1),
    "a difference of bools": lambda d: numbers(d, 3).bool() - numbers(d, 3).bool(),
    "dtypes that differ": lambda d: torch.lerp(numbers(d, 3), numbers(d, 3, dtype=torch.float64), 0.5),
    "a loss over another height": lambda d: F.nll_loss(numbers(d, 2, 3, 4, 5), indices(d, 2, 3, 5)),
    "an image of nothing": lambda d: F.adaptive_avg_pool2d(numbers(d, 1, 1, 0, 3), 2),
    "a fraction of integers": lambda d: torch.frac(numbers(d, 3, dtype=torch.int64)),
    "a list of integers divided": lambda d: torch._foreach_addcdiv(*[[numbers(d, 3, dtype=torch.int64)]] * 3),
    "a function of complex numbers": lambda d: torch.erf(numbers(d, 3, dtype=torch.complex64)),
    "a bound beyond the dtype": lambda d: narrow(d).clamp(max=200),
    "a bound that is not a number": lambda d: numbers(d, 3, dtype=torch.int64).masked_fill(
        numbers(d, 3).bool(), float("nan")
    ),
    "a factor beyond the dtype": lambda d: torch.addmm(
        numbers(d, 2, 2), numbers(d, 2, 2), numbers(d, 2, 2), alpha=1e300
    ),
    "a mask of another shape": lambda d: numbers(d, 5, 5).index_put((numbers(d, 2).bool(),), numbers(d)),
    "an order below zero": lambda d: torch.cdist(numbers(d, 2, 3), numbers(d, 2, 3), p=-1.0),
    "a result of another shape": lambda d: numbers(d, 3).logical_and_(numbers(d, 3, 3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses_raises_at_the_call(name: str, device: torch.device) -> None:
    if name == "a bound beyond the dtype" and torch.__version__ >= "2.15":
        assert torch.equal(REFUSED[name](device).cpu(), REFUSED[name](torch.device("cpu")))  # it has no effect there
        return
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever the CPU raises
        REFUSED[name](torch.device("cpu"))
    for _ in range(2):
        with pytest.raises(type(expected.value)) as raised:
            REFUSED[name](device)
        assert type(raised.value) is type(expected.value)
        assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]
        torch.accelerator.synchronize(device)  # nothing was queued


def test_gradients_that_nobody_asked_for_are_none(device: torch.device) -> None:
    """The meta kernel of batch norm's backward promises three gradients; its CPU kernel returns the requested ones."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3).requires_grad_(False), nn.BatchNorm2d(8)).to(device)
    for _ in range(2):
        model(torch.ones(2, 3, 8, 8, device=device)).sum().backward()
        torch.accelerator.synchronize(device)
    assert model[1].weight.grad is not None and model[0].weight.grad is None


def test_the_fast_path_of_attention_runs_at_its_first_call(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.inference_mode():
        expected = model(x, x, x)[0]
        result = model.to(device)(x.to(device), x.to(device), x.to(device))[0]
    torch.testing.assert_close(result.cpu(), expected, atol=1e-5, rtol=1e-5)


def test_asking_the_cpu_kernel_draws_nothing_and_writes_nothing(device: torch.device) -> None:
    state = torch.get_rng_state()
    x = torch.ones(7, 11, device=device)
    F.dropout(x, 0.5)
    x.normal_()
    x.fill_(2).index_add_(0, indices(device, 1), torch.ones(1, 11, device=device))
    F.rrelu(x, training=True)
    torch.accelerator.synchronize(device)
    assert torch.equal(torch.get_rng_state(), state)
    assert x.cpu()[1:].eq(2).all() and x.cpu()[0].eq(3).all()


def test_dtypes_of_factorizations_are_refused_at_the_call(device: torch.device) -> None:
    """Zeros and ones cannot be factored, so the CPU's kernel is asked about identity matrices."""
    for factor in (torch.cholesky_inverse, torch.linalg.cholesky):
        with pytest.raises(NotImplementedError):
            factor(torch.eye(3, dtype=torch.bfloat16, device=device))
        torch.accelerator.synchronize(device)


def test_indices_of_a_compressed_layout_are_checked_by_their_values(device: torch.device) -> None:
    """The CPU's kernel refuses zeros in their place."""

    def check(*rows: int) -> None:
        indices = (torch.tensor(rows, device=device), torch.tensor([2, 0, 2], device=device))
        torch.ops.aten._validate_sparse_csr_tensor_args(*indices, torch.ones(3, device=device), [2, 3])
        torch.accelerator.synchronize(device)

    check(0, 1, 3)
    with pytest.raises(RuntimeError, match=r"`crow_indices\[..., -1\] == nnz` is not satisfied"):
        check(0, 1, 2)


def test_a_result_in_the_memory_of_an_argument(device: torch.device) -> None:
    """If there is nothing to do, the CPU's kernel returns its argument, which the schema does not declare."""
    assert torch.channel_shuffle(torch.ones(1, 0, 3, 3, device=device), 2).shape == (1, 0, 3, 3)
