# SPDX-License-Identifier: BSD-3-Clause
"""Steps of fused and foreach optimizers and of AMP's scaler, whose kernels take lists of tensors.

The tests cover a fixed choice of the optimizers; OUTBOARD_TEST_SAMPLES=all covers all, as `make stress` does.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import torch_outboard
from torch_outboard import _C
from torch_outboard.testing.database.calls import poison

# None, one, fewer than a group of items has, several chunks.

TAKES_ALL = os.environ.get("OUTBOARD_TEST_SAMPLES") == "all"

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"weight_decay": 0.1}),
    "sgd-nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "adam": (torch.optim.Adam, {"weight_decay": 0.1}),
    "adam-amsgrad": (torch.optim.Adam, {"amsgrad": True, "maximize": True}),
    "adamw": (torch.optim.AdamW, {}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}),
}
SHAPES = ((3, 5), (1,), (), (777,), (5003,))


def steps(place: Any, kind: Any, options: dict[str, Any], scaled: bool = False, dtype: Any = torch.float32) -> Any:
    """Train for some steps with changing rates, from numbers that are the same on each device."""
    draw = torch.Generator().manual_seed(5)

    def random() -> list[torch.Tensor]:
        return [torch.randn(shape, generator=draw).to(dtype).to(place) for shape in SHAPES]

    parameters = [tensor.requires_grad_() for tensor in random()]
    optimizer = kind(parameters, **options)
    # Where its kernels scale the gradients, which the operators for the CPU can't.
    scaler = torch.amp.GradScaler(torch.device(place).type, enabled=scaled, init_scale=1024.0, growth_interval=2)
    for step in range(5):
        rate = 0.05 / (step + 1)
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        for parameter, grad in zip(parameters, random(), strict=True):
            parameter.grad = scaler.scale(grad) if scaled else grad
            if scaled and step == 2:
                parameter.grad.view(-1)[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        if step == 0 and torch.device(place).type != "cpu":
            built = _C.built_plans()
    if torch.device(place).type != "cpu":
        assert _C.built_plans() <= built + (2 if "momentum" in options or scaled else 0)
    state = [value for key in parameters for _, value in sorted(optimizer.state[key].items()) if value is not None]
    return [*parameters, *state, *([torch.tensor(scaler.get_scale())] if scaled else [])]


@pytest.mark.parametrize("way", ["foreach", "fused", "fused-tensor-lr"] if TAKES_ALL else ["fused"])
@pytest.mark.parametrize("name", OPTIMIZERS if TAKES_ALL else ["sgd-nesterov", "adam-amsgrad"])
def test_optimizers(name: str, way: str, device: torch.device) -> None:
    kind, options = OPTIMIZERS[name]
    settings = {**options, way.partition("-")[0]: True, "lr": 0.05}
    if way == "fused-tensor-lr":
        settings["lr"] = torch.tensor(0.05, device=device)
    torch_outboard.reset_coverage()
    got = steps(device, kind, settings)
    if way != "foreach":
        fused = [row for row in torch_outboard.coverage() if row.op.startswith("aten::_fused")]
        assert [(row.provider, row.calls) for row in fused] == [("generated", 5)]
    want = steps("cpu", kind, {**options, "lr": 0.05, "foreach": False})
    for result, wanted in zip(got, want, strict=True):
        torch.testing.assert_close(result.detach().cpu(), wanted.detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_fused_optimizer_of_halves(dtype: torch.dtype, device: torch.device) -> None:
    options = {"fused": True, "lr": 0.05, "weight_decay": 0.1}
    got, want = (steps(place, torch.optim.AdamW, options, dtype=dtype) for place in (device, "cpu"))
    for result, wanted in zip(got, want, strict=True):
        torch.testing.assert_close(result.detach().cpu(), wanted.detach(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_a_scaler(way: str, device: torch.device) -> None:
    """The third step is skipped because its gradients are infinite; growth and backoff equal the CPU's."""
    got, want = (steps(place, torch.optim.AdamW, {"lr": 0.05, way: True}, scaled=True) for place in (device, "cpu"))
    for result, wanted in zip(got, want, strict=True):
        torch.testing.assert_close(result.detach().cpu(), wanted.detach())


def test_what_is_refused_as_by_the_cpu(device: torch.device) -> None:
    x, y = (torch.ones(3, device=device) for _ in range(2))
    step, scale = torch.ones((), device=device), torch.ones((), device=device)
    for arguments in (([x.int()], scale, scale), ([x], scale.double(), scale)):
        with pytest.raises((RuntimeError, ValueError)):
            torch._amp_foreach_non_finite_check_and_unscale_(*arguments)
            torch.accelerator.synchronize(device)
    numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8}
    with pytest.raises((RuntimeError, ValueError)):
        torch._fused_adam_([x], [y, y], [y], [x * 2], [], [step], **numbers, amsgrad=False, maximize=False)
        torch.accelerator.synchronize(device)


def test_check_and_unscale(device: torch.device) -> None:
    check = torch._amp_foreach_non_finite_check_and_unscale_
    for value in (None, float("inf"), -float("inf"), float("nan")):
        x = [torch.randn(size) for size in ((0,), (1,), (), (7, 3), (5000,), (3, 4099))]
        if value is not None:
            x[-1].view(-1)[-1] = value
        ours, found_inf = [tensor.to(device) for tensor in x], torch.zeros((), device=device)
        torch_outboard.reset_coverage()
        check(ours, found_inf, torch.full((), 0.3, device=device))
        assert {row.op for row in torch_outboard.coverage()} <= {
            "aten::_amp_foreach_non_finite_check_and_unscale_",
            "aten::fill_.Scalar",
        }
        theirs = torch.zeros(())
        check(x, theirs, torch.full((), 0.3))
        assert found_inf.item() == theirs.item() == (value is not None)
        for result, wanted in zip(ours, x, strict=True):
            torch.testing.assert_close(result.cpu(), wanted, equal_nan=True)


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_a_graph_replays_a_step(way: str, device: torch.device) -> None:
    module = getattr(torch, device.type)
    start = [torch.randn(shape) for shape in SHAPES]
    gradients = [[torch.randn(shape) for shape in SHAPES] for _ in range(4)]

    def train(place: Any, is_captured: bool) -> list[torch.Tensor]:
        parameters = [tensor.clone().to(place).requires_grad_() for tensor in start]
        # A foreach optimizer keeps its steps on the device then, as capturing wants it.
        options = {"foreach": False} if place == "cpu" else {way: True, "capturable": True}
        optimizer = torch.optim.Adam(parameters, lr=0.01, **options)
        graph = None
        for number, grads in enumerate(gradients):
            for parameter, grad in zip(parameters, grads, strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(grad)
            if is_captured and number == 1:
                graph = module.Graph()
                with module.graph(graph):
                    optimizer.step()
                # Blocks that the capture has given back are others' now.
                poison(torch.device(place))
            if graph is not None:
                graph.replay()
            else:
                optimizer.step()
        return [parameter.detach().cpu() for parameter in parameters]

    for result, wanted in zip(train(device, True), train("cpu", False), strict=True):
        torch.testing.assert_close(result, wanted)
