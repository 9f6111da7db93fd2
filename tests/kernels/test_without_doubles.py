# SPDX-License-Identifier: BSD-3-Clause
"""Python numbers reach kernels of devices without float64 as on devices with it: no call runs on the CPU.

The driver `tests.simt_drivers:Floats` has no float64; the same holds on other drivers.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_outboard
from torch_outboard import _C

HALF = torch.tensor(0.5, dtype=torch.float64)
DTYPES = (torch.float32, torch.bfloat16, torch.int32)

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add alpha": lambda x: torch.add(x, x, alpha=3),
    "arange": lambda x: torch.arange(0, 2, 0.25, device=x.device),
    "clamp": lambda x: x.clamp(0.1, 2.5),
    "clamp_max": lambda x: x.clamp_max(2.5),
    "compare": lambda x: x > 0.3,
    "complex mul": lambda x: torch.complex(x.float(), x.float()) * (0.3 - 2j),
    "complex mul of reals": lambda x: x.float() * 0.3j,
    "div": lambda x: x / 3.7,
    "div of a number": lambda x: 0.3 / x,
    "float_power": lambda x: x.float().pow(2.5),
    "foreach_add": lambda x: torch._foreach_add([x, x], 0.3),
    "foreach_addcdiv": lambda x: torch._foreach_addcdiv([x.float()], [x.float()], [x.float()], value=0.3),
    "foreach_div of numbers": lambda x: torch._foreach_div([x, x], [0.3, 7.5]),
    "foreach_mul": lambda x: torch._foreach_mul([x, x], 0.3),
    "foreach_mul of a CPU tensor": lambda x: torch._foreach_mul([x.float()], HALF),
    "foreach_mul of a huge number": lambda x: torch._foreach_mul([x.float()], 1e39),
    "full": lambda x: torch.full((3,), 0.1, device=x.device),
    "lerp": lambda x: torch.lerp(x.float(), x.float() + 1, 0.3),
    "linspace": lambda x: torch.linspace(0, 1, 11, device=x.device),
    "maximum of a CPU tensor": lambda x: torch.maximum(x.float(), HALF),
    "mean": lambda x: x.float().mean(),
    "mul": lambda x: x * 0.3,
    "mul by a CPU tensor": lambda x: x.float() * HALF,
    "mul of a huge number": lambda x: x.float() * 1e39,
    "mul of nan": lambda x: x * math.nan,
    "mul_": lambda x: x.float().mul_(0.3),
    "mul_ by a CPU tensor": lambda x: x.float().mul_(HALF),
    "remainder": lambda x: x % 1.75,
    "rsub": lambda x: 0.3 - x,
    "std": lambda x: x.float().std(),
    "where": lambda x: torch.where(x > 1, x, 0.3),
    "xlogy": lambda x: torch.xlogy(0.3, x.float().abs()),
}


def assert_on_device(device: torch.device, *but: str) -> None:
    torch.accelerator.synchronize(device)
    others = [row for row in torch_outboard.coverage() if row.provider not in ("generated", "native")]
    assert {row.op for row in others} <= set(but), others


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_numbers(name: str, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.tensor([[1, 2, -3], [5, 7, -11]], dtype=dtype)
    ours = x.to(device)
    torch_outboard.reset_coverage()
    got = CALLS[name](ours)
    assert_on_device(device)
    want = CALLS[name](x)
    for result, wanted in zip(
        *([each] if isinstance(each, torch.Tensor) else each for each in (got, want)), strict=True
    ):
        torch.testing.assert_close(result.cpu(), wanted, equal_nan=True)


def test_what_is_of_doubles_keeps_its_type(device: torch.device) -> None:
    whole = torch.arange(5)
    for call in (lambda x: x * HALF, lambda x: x.double() * 0.3, lambda x: x[2] + HALF, lambda x: x.double().sum()):
        torch.testing.assert_close(call(whole.to(device)).cpu(), call(whole))


def test_dropout(device: torch.device) -> None:
    x = torch.ones(4000, device=device)
    torch_outboard.reset_coverage()
    dropped = F.dropout(x, 0.2)
    assert_on_device(device)
    assert sorted(set(dropped.cpu().tolist())) == [0, 1.25]
    assert 0.75 < (dropped != 0).float().mean().item() < 0.85


@pytest.mark.parametrize("how", [{}, {"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_optimizers(kind: Any, how: dict[str, bool], device: torch.device) -> None:
    def steps(place: torch.device) -> torch.Tensor:
        parameters = [nn.Parameter(tensor.to(place)) for tensor in start]
        optimizer = kind(parameters, lr=0.1, weight_decay=0.05, **how)
        for _ in range(4):
            sum(parameter.square().sum() for parameter in parameters).backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([parameter.detach() for parameter in parameters])

    start = [torch.linspace(-1, 2, count) for count in (5, 7)]
    torch_outboard.reset_coverage()
    got = steps(device)
    assert_on_device(device)
    torch.testing.assert_close(got.cpu(), steps(torch.device("cpu")))


@pytest.mark.parametrize("is_scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=str)
def test_training(dtype: torch.dtype | None, is_scaled: bool, device: torch.device) -> None:
    """By itself and under autocast, with plain and with scaled gradients."""

    def losses(place: torch.device) -> list[float]:
        model, x, y = copy.deepcopy(net).to(place), images.to(place), wanted.to(place)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(place.type, init_scale=256.0, enabled=is_scaled)
        step_losses = []
        for _ in range(5):
            with torch.autocast(place.type, dtype, enabled=dtype is not None):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            step_losses.append(loss)
        return torch.stack(step_losses).tolist()

    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(36),
        nn.Linear(36, 5),
    )
    images, wanted = torch.randn(6, 1, 8, 8), torch.arange(6) % 5
    torch_outboard.reset_coverage()
    got = losses(device)
    # GradScaler.unscale_ takes the reciprocal of the scale, one number,
    # in float64 on whatever device.
    assert_on_device(device, *(("aten::copy_", "aten::reciprocal") if is_scaled else ()))
    assert got == pytest.approx(losses(torch.device("cpu")), rel=0.03 if dtype is not None else 1e-4)


@pytest.mark.parametrize("function", [F.silu, F.gelu, torch.exp, lambda x: 1 - x])
def test_doubles_run_elsewhere(function: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> None:
    """Composite operators pass numbers to operators that take tensors."""
    x = torch.rand(3, dtype=torch.float64)
    ours = x.to(device).requires_grad_()
    _C.set_fallback_mode("silent")
    try:
        result = function(ours)
        result.sum().backward()
    finally:
        _C.set_fallback_mode(os.environ.get("OUTBOARD_FALLBACK", "warn"))
    theirs = x.clone().requires_grad_()
    expected = function(theirs)
    expected.sum().backward()
    torch.testing.assert_close((result.cpu(), ours.grad.cpu()), (expected, theirs.grad))
