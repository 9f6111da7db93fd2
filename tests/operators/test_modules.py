# SPDX-License-Identifier: BSD-3-Clause
"""Every module of torch's database on the attached device, against the CPU: results, gradients and buffers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.utils._pytree import tree_leaves, tree_map

from torch_outboard.testing.database.calls import CPU, Copier, seed
from torch_outboard.testing.database.compare import Bounds, TorchBounds, difference

from . import lists
from .harness import every_warning, tensors_in
from .outcome import Outcome
from .samples import ALL_SAMPLES, dtype_name

DTYPES = (torch.float32, torch.bfloat16)


class Case(NamedTuple):
    info: ModuleInfo
    dtype: torch.dtype
    training: bool

    @property
    def name(self) -> str:
        return f"{self.info.name}-{dtype_name(self.dtype)}-{'train' if self.training else 'eval'}"

    def inputs(self) -> list[ModuleInput]:
        seed(3, CPU)
        samples = self.info.module_inputs_func(
            self.info, device="cpu", dtype=self.dtype, requires_grad=True, training=self.training
        )
        return list(samples) if ALL_SAMPLES else list(samples)[:4]


def cases() -> Iterator[Case]:
    for info in module_db:
        for dtype in DTYPES:
            for training in (True, False) if info.train_and_eval_differ else (True,):
                yield Case(info, dtype, training)


def _parameters() -> Iterator[Any]:
    for case in cases():
        gap = lists.gap("modules", case.info.name, dtype_name(case.dtype), all_samples=ALL_SAMPLES)
        marks = [] if gap is None else [pytest.mark.xfail(strict=True, run=not gap.crashes, reason=gap.reason)]
        yield pytest.param(case, id=case.name, marks=marks)


def _run(module: torch.nn.Module, arguments: Any, place: torch.device) -> list[torch.Tensor | None]:
    """Return results, gradients of arguments and parameters, and buffers."""
    args, kwargs = arguments
    results = tensors_in(module(*args, **kwargs))
    loss = sum(result.float().square().sum() for result in results if result.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    leaves = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    gradients = [leaf.grad for leaf in [*leaves, *module.parameters()]]
    return [*results, *gradients, *module.buffers()]


def _outcome(module: torch.nn.Module, case: ModuleInput, place: torch.device, training: bool) -> Outcome:
    ours = copy.deepcopy(module).to(place).train(training)
    copier = Copier(place)
    arguments = tree_map(copier, (case.forward_input.args, case.forward_input.kwargs))
    seed(5, place)
    return Outcome(lambda: _run(ours, arguments, place), place)


def _bounds(name: str, ours: Outcome) -> Bounds | None:
    return lists.MODULE_TOLERANCES.get(name) if ours.is_exact else TorchBounds(None)


def _differences(ours: Outcome, theirs: Outcome, name: str) -> Iterator[str]:
    if ours.error is not None or theirs.error is not None:
        if type(ours.error) is not type(theirs.error):
            yield f"{ours.describe_error()}; on the CPU {theirs.describe_error()}"
        return
    if ours.fallback:
        yield f"copy fallback: {', '.join(ours.fallback)}"
    if len(ours.tensors) != len(theirs.tensors):
        yield f"{len(ours.tensors)} results and gradients, on the CPU {len(theirs.tensors)}"
        return
    for number, (a, b) in enumerate(zip(ours.tensors, theirs.tensors, strict=True)):
        text = difference(a, b, _bounds(name, ours))
        if text is not None:
            yield f"tensor {number}: {text}"


@pytest.mark.parametrize("case", list(_parameters()))
def test_module(case: Case, device: torch.device) -> None:
    texts = []
    compared = 0
    with every_warning():
        for index, sample in enumerate(case.inputs()):
            if sample.forward_input is None:
                continue
            seed(4, CPU)
            module = case.info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
            module = module.to(case.dtype)
            if case.info.is_lazy:  # its parameters are drawn where it first runs
                module(*sample.forward_input.args, **sample.forward_input.kwargs)
            theirs = _outcome(module, sample, CPU, case.training)
            ours = _outcome(module, sample, device, case.training)
            compared += theirs.error is None
            texts += [f"sample {index} {sample.desc}: {text}" for text in _differences(ours, theirs, case.info.name)]
    assert not texts, "\n".join(texts[:8])
    assert compared or (case.info.name, dtype_name(case.dtype)) in lists.MODULES_THAT_THE_CPU_LACKS
