# SPDX-License-Identifier: BSD-3-Clause
"""Fourier transforms by generated kernels, as near to those in double precision as the CPU's are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_outboard
from torch_outboard.testing.database.calls import poison

FFT = torch.fft


def check(function: Callable[..., torch.Tensor], signal: torch.Tensor, device: torch.device) -> None:
    wide = signal.to(torch.complex128 if signal.is_complex() else torch.float64)
    expected, ours = function(wide), signal.to(device)
    poison(device)
    torch_outboard.reset_coverage()
    result = function(ours)
    assert {row.provider for row in torch_outboard.coverage()} <= {"generated", "native"}, torch_outboard.coverage()
    assert result.dtype == function(signal).dtype and result.stride() == function(signal).stride()
    error = (result.cpu().to(expected.dtype) - expected).abs().max()
    assert error <= 1e-6 * expected.abs().max(), error


# A power of two, a product of several factors, a prime, one.
@pytest.mark.parametrize("length", [64, 60, 13, 1])
def test_lengths(length: int, device: torch.device) -> None:
    check(FFT.fft, torch.randn(3, length, dtype=torch.complex64), device)


def test_kinds(device: torch.device) -> None:
    half = torch.randn(3, 4, 5, dtype=torch.complex64)
    check(lambda x: FFT.ifft(x, dim=0, norm="ortho"), half.transpose(0, 1), device)
    check(FFT.rfftn, torch.randn(3, 4, 6), device)
    check(lambda x: FFT.irfftn(x, (3, 4, 9)), half, device)
    check(lambda x: FFT.hfft(x, norm="forward"), half[0], device)


def test_gradients(device: torch.device) -> None:
    x, weight = torch.randn(2, 12), torch.randn(2, 7)
    gradients = []
    for place in ("cpu", device):
        signal = x.to(place).detach().requires_grad_()
        (FFT.rfft(signal).abs() * weight.to(place)).sum().backward()
        assert signal.grad is not None
        gradients.append(signal.grad.cpu())
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_a_long_prime_runs_on_the_cpu(device: torch.device) -> None:
    x = torch.randn(5003, dtype=torch.complex64)
    torch_outboard.reset_coverage()
    result = FFT.fft(x.to(device))
    (reason,) = torch_outboard.coverage().reasons["aten::_fft_c2c"]
    assert "a prime factor above 4096 [fourier-length]. Pad the signal" in reason
    assert torch_outboard.coverage().calls("aten::_fft_c2c", "fallback") == 1
    torch.testing.assert_close(result.cpu(), FFT.fft(x), atol=1e-3, rtol=1e-3)
