# SPDX-License-Identifier: BSD-3-Clause
"""Drawn programs of several steps leave the same tensors as on the CPU, and planted faults are found."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from .outcome import reaches_memory
from .programs import steps
from .programs.run import _NEW, difference, drawn, minimised, text
from .programs.steps import Kind, Step

PROGRAMS = 12


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_programs_agree_with_the_cpu(seed: int, device: torch.device) -> None:
    if not reaches_memory(device):
        pytest.skip("capability: the CPU's kernels; make stress draws programs for others")
    program = drawn(seed, 40, compiled=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if (departure := difference(program, device, is_exact=True)) is not None:
            pytest.fail(f"{departure[1]}\n{text(minimised(program, device, is_exact=True))}")


def _is_ours(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "cpu"


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy at the same offset of its own memory."""
    before = tensor.new_zeros(tensor.storage_offset())
    return torch.cat([before, tensor.flatten()])[len(before) :].view(tensor.shape)


def _write_twice(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(3).fill_(3) if _is_ours(tensor) else tensor.fill_(3)


def _write_around(tensor: torch.Tensor) -> torch.Tensor:
    if _is_ours(tensor):
        tensor.as_strided((1,), (1,), 0).fill_(77)
    else:
        tensor.as_strided((1,), (1,), 0).mul_(1)
    return tensor


def _fail(tensor: torch.Tensor) -> torch.Tensor:
    if _is_ours(tensor):
        raise ValueError("planted")
    return tensor.clone()


FAULTS: dict[str, tuple[Callable[..., Any], bool, str]] = {
    "values": (lambda x: x + 1 if _is_ours(x) else x + 2, False, "elements differ"),
    "strides": (lambda x: x.t().contiguous().t() if _is_ours(x) else x.contiguous(), False, "strides"),
    "shared memory": (lambda x: _apart(x) if _is_ours(x) else x[:], False, "share memory"),
    "a version": (_write_twice, True, "version grows by 2"),
    "memory around a view": (_write_around, True, "around it"),
    "an exception": (_fail, False, "raises ValueError: planted"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_with_the_steps_that_it_needs(name: str, device: torch.device) -> None:
    function, in_place, message = FAULTS[name]
    create = Step(_NEW, (), (5, (4, 3), torch.float32, "plain"))
    kinds = {kind.name: kind for kind in (*steps.VIEWS, *steps.FUNCTIONS)}
    program = [
        create,
        create,
        Step(kinds["add"], (0, 1), ()),
        Step(kinds["narrow"], (0,), (0, 1, 2)),
        Step(kinds["sin"], (1,), ()),
        Step(Kind("fault", 1, function, in_place=in_place), (3,), ()),
        Step(kinds["neg"], (4,), ()),
    ]
    least = minimised(program, device, is_exact=False)
    departure = difference(least, device, is_exact=False)
    assert departure is not None
    assert message in departure[1]
    assert [line.partition("(")[0].split()[-1] for line in text(least).splitlines()] == ["new", "narrow", "fault"]
