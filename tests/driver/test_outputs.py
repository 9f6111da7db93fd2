# SPDX-License-Identifier: BSD-3-Clause
"""Outputs that differ from the tensors that a kernel would make are handled as on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

CPU = torch.device("cpu")

Call = Callable[[torch.device], torch.Tensor | tuple[torch.Tensor, ...]]


def floats(device: torch.device, *shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(0.5, 2, count).reshape(shape).to(device)


def square(device: torch.device, size: int = 4) -> torch.Tensor:
    return (floats(CPU, size, size) + size * torch.eye(size)).to(device)


def permuted(device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return floats(CPU, 4, 5, 3, 2).to(device, dtype).permute(3, 2, 1, 0)


def channels_last(device: torch.device) -> torch.Tensor:
    return floats(CPU, 2, 4, 3, 6).to(device).to(memory_format=torch.channels_last)


def empty(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, 9, dtype=dtype, device=device)


def expanded(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.full((1,), 9.0, device=device).expand(shape)


OUTPUTS: dict[str, Call] = {
    "linspace of equal numel": lambda d: torch.linspace(0, 1, 6, out=empty(d, 2, 3)),
    "linspace of other numel": lambda d: torch.linspace(0, 1, 6, out=empty(d, 2, 2)),
    "logspace of equal numel": lambda d: torch.logspace(0, 1, 6, out=empty(d, 3, 1, 2)),
    "arange of equal numel": lambda d: torch.arange(6, out=empty(d, 2, 3, dtype=torch.int64)),
    "arange of other numel": lambda d: torch.arange(6, out=empty(d, 4, dtype=torch.int64)),
    "inv": lambda d: torch.linalg.inv(square(d), out=empty(d, 2, 2)),
    "lu_factor": lambda d: torch.linalg.lu_factor(square(d), out=(empty(d, 3), empty(d, 9, dtype=torch.int32)))[0],
    "triangular solve": lambda d: torch.linalg.solve_triangular(
        square(d), floats(d, 4, 3), upper=True, out=empty(d, 0)
    ),
    "an inner product of another shape": lambda d: torch.mm(floats(d, 3, 4), floats(d, 4, 2), out=empty(d, 5)),
    "cat of channels last": lambda d: torch.cat([channels_last(d), channels_last(d)], out=empty(d, 0)),
    "where": lambda d: torch.where(permuted(d) > 1, permuted(d), permuted(d), out=empty(d, 0)),
    "magnitudes": lambda d: torch.abs(permuted(d, torch.complex64), out=empty(d, 0)),
    "standard deviation": lambda d: torch.std(floats(d, 3, 4), dim=0, out=empty(d, 3, 1)),
    "transform": lambda d: torch.fft.fft(floats(d, 3, 4), out=empty(d, 2, dtype=torch.complex64)),
    "a place for several elements": lambda d: torch.mv(floats(d, 3, 4), floats(d, 4), out=expanded(d, 3))[:0],
    "a place that grows": lambda d: torch._C._nn.linear(floats(d, 4), floats(d, 3, 4), out=expanded(d, 3)),
    "into a part of more": lambda d: torch.linspace(0, 1, 4, out=empty(d, 6, 3)[1:-1, 1].view(1, 4, 1)),
    "in place of a smaller sum": lambda d: floats(d, 4).addbmm_(floats(d, 2, 3, 5), floats(d, 2, 5, 4)),
}


def outcome(call: Call, device: torch.device) -> tuple[list[torch.Tensor], list[str]]:
    """Return the results and the call's own warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(device)
    messages = [
        str(warning.message).partition(" (Triggered")[0]
        for warning in caught
        if issubclass(warning.category, UserWarning)
    ]
    messages = [text for text in messages if "runs on the CPU instead" not in text]
    return list(result) if isinstance(result, tuple) else [result], messages


def assert_same(ours: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(ours, expected, strict=True):
        assert a.shape == b.shape
        assert a.stride() == b.stride()
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_becomes_what_it_becomes_on_the_cpu(device: torch.device, name: str) -> None:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        expected, expected_warnings = outcome(OUTPUTS[name], CPU)
        for _ in range(2):  # an unknown signature, and a known one
            ours, messages = outcome(OUTPUTS[name], device)
            assert_same(ours, expected)
            assert messages == expected_warnings
    finally:
        torch.set_warn_always(before)


def batch_norm(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.batch_norm(x, None, None, training=True)


def gradient(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (result,) = torch.autograd.grad(function(x).sum(), x)
    return result


LAYOUTS: dict[str, Call] = {
    "angle": lambda d: permuted(d, torch.complex64).angle(),
    "complex": lambda d: torch.complex(permuted(d), permuted(d)),
    "polar": lambda d: torch.polar(permuted(d), permuted(d)),
    "floor_divide": lambda d: permuted(d) // permuted(d),
    "logsigmoid": lambda d: torch.nn.functional.logsigmoid(permuted(d)),
    "batch norm": lambda d: batch_norm(permuted(d)),
    "batch norm's gradient": lambda d: gradient(batch_norm, permuted(d)),
    "mse_loss's gradient": lambda d: gradient(lambda x: torch.nn.functional.mse_loss(x, x.detach() * 2), permuted(d)),
    "glu's gradient": lambda d: gradient(lambda x: torch.nn.functional.glu(x, 1), channels_last(d)),
    "channel_shuffle": lambda d: torch.nn.functional.channel_shuffle(channels_last(d), 2),
    "pad": lambda d: torch.nn.functional.pad(channels_last(d), (1, 1, 1, 1), mode="replicate"),
    "pad's gradient": lambda d: gradient(
        lambda x: torch.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect"), channels_last(d)
    ),
    "conv3d's gradient": lambda d: gradient(
        lambda x: torch.nn.functional.conv3d(x, floats(d, 3, 2, 2, 2, 2)),
        floats(CPU, 1, 2, 3, 3, 3).to(d).to(memory_format=torch.channels_last_3d),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_result_is_laid_out_as_on_the_cpu(device: torch.device, name: str) -> None:
    assert_same(outcome(LAYOUTS[name], device)[0], outcome(LAYOUTS[name], CPU)[0])


def test_a_bag_of_bfloat16_is_summed_in_its_first_call(device: torch.device) -> None:
    weight = floats(CPU, 5, 4).bfloat16()
    index, offsets = torch.tensor([0, 3, 1, 4]), torch.tensor([0, 2])
    expected = torch.nn.functional.embedding_bag(index, weight, offsets, mode="sum")
    ours = torch.nn.functional.embedding_bag(index.to(device), weight.to(device), offsets.to(device), mode="sum")
    torch.accelerator.synchronize(device)
    torch.testing.assert_close(ours.cpu(), expected)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_bags_that_end_at_the_last_offset_are_summed_in_their_first_call(
    device: torch.device, mode: str, requires_grad: bool
) -> None:
    weight, index = floats(CPU, 5, 4), torch.tensor([0, 3, 1, 4])
    # What lies behind the last offset is in no bag, and the CPU's
    # kernels read memory of others for it.
    for offsets, last in ((torch.tensor([0, 2]), False), (torch.tensor([0, 2, 4]), True), (torch.tensor([0, 4]), True)):
        options = {"mode": mode, "include_last_offset": last}
        leaf = weight.to(device).requires_grad_(requires_grad)
        ours = torch.nn.functional.embedding_bag(index.to(device), leaf, offsets.to(device), **options)
        torch.accelerator.synchronize(device)
        expected = torch.nn.functional.embedding_bag(index, weight, offsets, **options)
        torch.testing.assert_close(ours.detach().cpu(), expected)


def doubles(device: torch.device, *shape: int) -> torch.Tensor:
    return empty(device, *shape, dtype=torch.float64)


def indices(device: torch.device, *shape: int) -> torch.Tensor:
    return empty(device, *shape, dtype=torch.int64)


def overlapping_sum(device: torch.device) -> torch.Tensor:
    base = empty(device, 10)
    return torch.addmm(base[:9].view(3, 3), floats(device, 3, 4), floats(device, 4, 3), out=base[1:].view(3, 3))


REFUSED: dict[str, Call] = {
    "kthvalue into doubles": lambda d: torch.kthvalue(floats(d, 4, 3), 2, 0, out=(doubles(d, 3), indices(d, 3))),
    "searchsorted into doubles": lambda d: torch.searchsorted(floats(d, 4), floats(d, 3), out=doubles(d, 3)),
    "bucketize into doubles": lambda d: torch.bucketize(floats(d, 3), floats(d, 4), out=doubles(d, 3)),
    "index_select into doubles": lambda d: torch.index_select(
        floats(d, 4, 3), 0, torch.tensor([1, 0], device=d), out=doubles(d, 2, 3)
    ),
    "take into doubles": lambda d: torch.take(floats(d, 4), torch.tensor([1, 0], device=d), out=doubles(d, 2)),
    "eigh into doubles": lambda d: torch.linalg.eigh(square(d), out=(doubles(d, 4), doubles(d, 4, 4))),
    "abs into doubles": lambda d: torch.abs(floats(d, 3), out=doubles(d, 3)),
    "nan_to_num into doubles": lambda d: torch.nan_to_num(floats(d, 3), out=doubles(d, 3)),
    "conj_physical into doubles": lambda d: torch.conj_physical(floats(d, 3), out=doubles(d, 3)),
    "histc into doubles": lambda d: torch.histc(floats(d, 3), 4, 0, 3, out=doubles(d, 4)),
    "normal into integers": lambda d: torch.normal(floats(d, 3), floats(d, 3), out=indices(d, 3)),
    "logit_ of integers": lambda d: indices(d, 3).logit_(),
    "polar of two dtypes": lambda d: torch.polar(floats(d, 3), doubles(d, 3)),
    "gelu of an unknown kind": lambda d: torch.nn.functional.gelu(floats(d, 3), approximate="sometimes"),
    "layer norm with another weight": lambda d: torch.native_layer_norm(floats(d, 2, 3), [3], floats(d, 2), None, 1e-5),
    "a number that no integer is": lambda d: indices(d, 3).masked_fill_(
        indices(d, 3) > 0, torch.tensor(float("inf"), device=d)
    ),
    "a sum into a part of its first term": overlapping_sum,
    "mode into shared elements": lambda d: torch.mode(
        floats(d, 4, 3), 0, out=(expanded(d, 3), torch.zeros(1, dtype=torch.int64, device=d).expand(3))
    ),
    "multinomial into shared elements": lambda d: torch.multinomial(
        floats(d, 4), 2, out=torch.zeros(1, dtype=torch.int64, device=d).expand(2)
    ),
    "conj_physical_ of shared elements": lambda d: (
        torch.ones(1, dtype=torch.complex64, device=d).expand(3).conj_physical_()
    ),
    "addmv into shared elements": lambda d: torch.addmv(
        floats(d, 3), floats(d, 3, 4), floats(d, 4), out=expanded(d, 3)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses_is_refused_at_the_call(device: torch.device, name: str) -> None:
    with pytest.raises(Exception, match=".") as expected:
        REFUSED[name](CPU)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as raised:
            REFUSED[name](device)
        assert str(expected.value).splitlines()[0] in str(raised.value)
    torch.accelerator.synchronize(device)  # nothing comes late
