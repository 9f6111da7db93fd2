# SPDX-License-Identifier: BSD-3-Clause
"""8-bit floats: their form in memory, and conversions to and from other types."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torch_outboard import coverage, reset_coverage
from torch_outboard.codegen.dialects.dialect import FLOAT8

TYPES = list(FLOAT8)


def run(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the result on the CPU and compare it bit for bit with the CPU's; nothing may run on the CPU."""
    reset_coverage()
    ours = function(*(tensor.to(device) for tensor in inputs))
    assert {row.provider for row in coverage()} <= {"generated", "native"}, coverage()
    result, expected = ours.cpu(), function(*inputs)
    assert result.dtype == expected.dtype and result.shape == expected.shape
    if result.dtype in FLOAT8:
        assert torch.equal(result.view(torch.uint8), expected.view(torch.uint8)), (result, expected)
    else:
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    return result


def edges() -> torch.Tensor:
    """Return floats of all exponents, with fractions at which rounding changes, and random floats."""
    high = torch.arange(2**16, dtype=torch.int32) << 16
    bits = torch.cat([high, high + 1, high - 1, torch.randint(-(2**31), 2**31, (2**14,)).to(torch.int32)])
    return bits.view(torch.float32)


def all_of(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(256).to(torch.uint8).view(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_conversions(dtype: torch.dtype, device: torch.device) -> None:
    floats = edges()
    run(lambda x: x.to(dtype), floats[~floats.isnan()], device=device)
    assert run(lambda x: x.to(dtype), torch.tensor([float("nan")]), device=device).isnan().all()
    run(lambda x: x.to(torch.float32), all_of(dtype), device=device)
    for target in (torch.bfloat16, torch.float16, torch.float64, torch.bool):
        run(lambda x, target=target: x.to(target), all_of(dtype), device=device)
    run(lambda x: x.to(dtype), torch.randint(-99, 99, (300,)), device=device)
    run(lambda x: x.to(dtype), torch.randn(300, dtype=torch.float64) * 30, device=device)
    run(lambda x: x.to(dtype), all_of(torch.float8_e5m2)[:120], device=device)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_moves(dtype: torch.dtype, device: torch.device) -> None:
    x = (torch.rand(6, 8) * 8).to(dtype)
    i = torch.randint(6, (9,))
    run(lambda x: x.t().contiguous(), x, device=device)
    run(lambda x: torch.cat([x, x[2:4]]), x, device=device)
    run(lambda x: torch.stack([x.t(), x.t()]), x, device=device)
    run(lambda x, i: x[i, 3], x, i, device=device)
    run(lambda x, i: x.index_select(0, i), x, i, device=device)
    run(lambda x: torch.where(x.float() > 3, x, x[0]), x, device=device)
    run(lambda x: x == x[0], x, device=device)
    run(lambda x: torch.full_like(x, 2.0), x, device=device)
    run(lambda x: torch.zeros_like(x).copy_(x[:, :1].expand(6, 8)), x, device=device)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_compiled(dtype: torch.dtype, device: torch.device) -> None:
    """As in training with scaled 8-bit floats: the arithmetic is in float, the storage is not."""

    @torch.compile
    def scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = 448 / x.abs().amax()
        kept = (x * scale).clamp(-448, 448).to(dtype)
        return kept, kept.float() / scale

    x = torch.randn(33, 40)
    kept, back = scaled(x.to(device))
    scale = 448 / x.abs().amax()
    expected = (x * scale).clamp(-448, 448).to(dtype)
    assert torch.equal(kept.cpu().view(torch.uint8), expected.view(torch.uint8))
    torch.testing.assert_close(back.cpu(), expected.float() / scale)
