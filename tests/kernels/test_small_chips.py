# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of chips whose groups are small: a sample of the operators and what has templates, by the strict drivers.

The drivers `tests.simt_drivers:Strict` and `Strict32` have groups of 64 and 32 items, 16 KiB of local memory, no
doubles, and a compiler that rejects words that docs/vendor-questions.md does not list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import linalg
from torch.testing._internal.opinfo.core import OpInfo

from torch_outboard.testing.database.entries import entries_of, run_entry

pytestmark = pytest.mark.usefixtures("nothing_on_the_cpu")


def regular(*shape: int) -> torch.Tensor:
    return torch.randn(shape) + 2 * shape[-1] ** 0.5 * torch.eye(shape[-1])


def gradients(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Return a function that returns the gradients of another one."""

    def called(*inputs: torch.Tensor) -> Any:
        inputs = tuple(tensor.detach().requires_grad_() for tensor in inputs)
        result = function(*inputs)
        return torch.autograd.grad(
            result, inputs, torch.linspace(-1, 1, result.numel()).to(result.device).view_as(result)
        )

    return called


def heads(length: int, size: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(1, 2, length, size) for _ in range(3))


IMAGE, MANY = torch.randn(2, 8, 20, 20), torch.randn(70, 70)
CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "solve": (linalg.solve, (regular(2, 40, 40), torch.randn(2, 40, 3))),
    "inv": (linalg.inv, (regular(2, 40, 40),)),
    "det": (linalg.det, (regular(2, 5, 5),)),
    "cholesky": (linalg.cholesky, (MANY @ MANY.T + 70 * torch.eye(70),)),
    "qr": (lambda x: linalg.qr(x)[1].abs(), (torch.randn(2, 70, 40),)),
    "svdvals": (linalg.svdvals, (torch.randn(2, 40, 70),)),
    "eigvalsh": (linalg.eigvalsh, (MANY + MANY.T,)),
    "solve_triangular": (
        lambda a, b: linalg.solve_triangular(a.tril(), b, upper=False),
        (regular(70, 70), torch.randn(70, 3)),
    ),
    "mm": (torch.mm, (torch.randn(150, 70), torch.randn(70, 133))),
    "mm of long sums": (torch.mm, (torch.randn(20, 3000), torch.randn(3000, 9))),
    "mm of integers": (torch.mm, (torch.arange(40 * 33).view(40, 33), torch.arange(33 * 50).view(33, 50))),
    "conv2d": (F.conv2d, (IMAGE, torch.randn(4, 8, 3, 3))),
    "conv2d of depth": (lambda x, w: F.conv2d(x, w, groups=8), (IMAGE, torch.randn(8, 1, 3, 3))),
    "conv2d of depth, gradients": (
        gradients(lambda x, w: F.conv2d(x, w, groups=8)),
        (IMAGE, torch.randn(8, 1, 3, 3)),
    ),
    "conv2d, gradients": (gradients(lambda x, w: F.conv2d(x, w, stride=2)), (IMAGE, torch.randn(4, 8, 3, 3))),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (IMAGE, torch.randn(8, 4, 3, 3))),
    "conv3d": (F.conv3d, (torch.randn(1, 2, 5, 5, 5), torch.randn(2, 2, 3, 3, 3))),
    "sdpa": (F.scaled_dot_product_attention, heads(70, 16)),
    "sdpa of wide heads": (F.scaled_dot_product_attention, heads(40, 256)),
    "sdpa, gradients": (gradients(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True)), heads(70, 64)),
    "sdpa of wide heads, gradients": (gradients(F.scaled_dot_product_attention), heads(33, 130)),
    "softmax": (lambda x: x.softmax(-1), (torch.randn(7, 3000),)),
    "sum of columns": (lambda x: x.sum(0), (torch.randn(3000, 33),)),
    "var_mean": (lambda x: torch.var_mean(x, dim=-1), (torch.randn(7, 3000),)),
    "argmax": (lambda x: x.argmax(-1), (torch.randn(7, 3000),)),
    "all": (lambda x: (x > -9).all(), (torch.randn(70, 70),)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (IMAGE,)),
    "layer_norm": (lambda x: F.layer_norm(x, (20,)), (IMAGE,)),
    "sort": (lambda x: x.sort()[0], (torch.randn(3, 3000),)),
    "cumsum": (lambda x: x.cumsum(0), (torch.ones(5000),)),
    "scatter_reduce": (
        lambda x: torch.zeros_like(x).scatter_reduce(0, torch.zeros_like(x).long(), x, "amax"),
        (torch.rand(70, 3),),
    ),
    "norms of a list": (lambda x: torch.stack(torch._foreach_norm([x, x[0]])), (torch.randn(70, 70),)),
    "upsampling, gradients": (gradients(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")), (IMAGE,)),
    "gelu": (F.gelu, (torch.randn(7, 300),)),
    "erfinv": (torch.erfinv, (torch.rand(300),)),
    "digamma": (torch.digamma, (torch.rand(300) + 0.1,)),
    "i0": (torch.special.i0, (torch.randn(300),)),
}


@pytest.mark.parametrize("name", CALLS)
def test_values(name: str, device: torch.device) -> None:
    function, inputs = CALLS[name]
    got, want = function(*(tensor.to(device) for tensor in inputs)), function(*inputs)
    for ours, theirs in zip(
        *([value] if isinstance(value, torch.Tensor) else value for value in (got, want)), strict=True
    ):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-3)


def test_lstm(device: torch.device) -> None:
    model, x = torch.nn.LSTM(4, 5), torch.randn(3, 2, 4)
    want = model(x)[0]
    torch.testing.assert_close(model.to(device)(x.to(device))[0].cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", entries_of(torch.float32, parts=12), ids=lambda info: info.full_name)
def test_entry(info: OpInfo, device: torch.device) -> None:
    """A sample of torch's operators is right or refused, and no text has a word that a language may lack."""
    state, reason = run_entry(info, torch.float32, 1, device)
    assert state in ("right", "ran", "skipped", "refused"), f"{state}: {reason}"
    assert "building its plan raised ValueError" not in reason, reason
