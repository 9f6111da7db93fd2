# SPDX-License-Identifier: BSD-3-Clause
"""Every optimizer of torch's database on the attached device: parameters and states after a few steps are the CPU's."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, OptimizerInput, optim_db
from torch.utils._pytree import tree_leaves

from torch_outboard.testing.database.calls import CPU, Copier
from torch_outboard.testing.database.compare import TorchBounds, difference

from . import lists
from .outcome import Outcome
from .samples import ALL_SAMPLES

STEPS = 3


def _kinds(info: OptimizerInfo) -> list[str]:
    """Return the kinds of parameters that the optimizer takes: element types, or sparse gradients."""
    kinds = ["float32", "bfloat16"]
    if info.only_supports_sparse_grads:
        return ["sparse"]
    if info.supports_complex:
        kinds.append("complex64")
    return [*kinds, "sparse"] if info.supports_sparse else kinds


def _parameters() -> Iterator[Any]:
    for info in optim_db:
        for kind in _kinds(info):
            for foreach in (False, True) if "foreach" in info.supported_impls else (None,):
                gap = lists.gap("optimizers", info.optim_cls.__name__, kind, all_samples=ALL_SAMPLES)
                marks = [] if gap is None else [pytest.mark.xfail(strict=True, reason=gap.reason)]
                name = f"{info.optim_cls.__name__}-{kind}{'-foreach' if foreach else ''}"
                yield pytest.param(info, kind, foreach, id=name, marks=marks)


def _gradient(parameter: torch.Tensor, generator: torch.Generator, is_sparse: bool) -> torch.Tensor:
    drawn = torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)
    if not is_sparse:
        return drawn
    drawn[0] = 0
    return drawn.to_sparse(1)


def _run(info: OptimizerInfo, case: OptimizerInput, kind: str, foreach: bool | None, place: torch.device) -> list[Any]:
    """Return the parameters and the states after some steps with given gradients."""
    generator = torch.Generator().manual_seed(3)
    copier = Copier(place)
    dtype = torch.float32 if kind == "sparse" else getattr(torch, kind)
    shapes = [(4, 5), (5,)] if info.optim_cls.__name__ != "Muon" else [(4, 5), (3, 2)]
    drawn = [torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes]
    parameters = [torch.nn.Parameter(copier(value)) for value in drawn]
    options = copy.deepcopy(case.kwargs) | ({} if foreach is None else {"foreach": foreach})
    for key, value in options.items():
        if isinstance(value, torch.Tensor):
            options[key] = copier(value)
    optimizer = info.optim_cls(parameters, **options)
    for _ in range(STEPS):
        for parameter in parameters:
            parameter.grad = copier(_gradient(parameter, generator, kind == "sparse"))
        optimizer.step(lambda: sum(parameter.abs().sum() for parameter in parameters).detach())
    return [*parameters, *tree_leaves(optimizer.state_dict()["state"])]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info,kind,foreach", list(_parameters()))
def test_optimizer(info: OptimizerInfo, kind: str, foreach: bool | None, device: torch.device) -> None:
    texts = []
    moved = 0
    cases = info.optim_inputs_func("cpu")
    for case in cases:
        theirs = Outcome(lambda case=case: _run(info, case, kind, foreach, CPU), CPU)
        ours = Outcome(lambda case=case: _run(info, case, kind, foreach, device), device)
        if ours.error is not None or theirs.error is not None:
            if type(ours.error) is not type(theirs.error):
                texts.append(f"{case.desc}: {ours.describe_error()}; on the CPU {theirs.describe_error()}")
            continue
        moved += 1
        bounds = None if ours.is_exact else TorchBounds(None)
        for number, (a, b) in enumerate(zip(ours.tensors, theirs.tensors, strict=True)):
            text = difference(a, b, bounds)
            if text is not None:
                texts.append(f"{case.desc or 'default'}: tensor {number}: {text}")
    assert not texts, "\n".join(texts[:8])
    assert moved
