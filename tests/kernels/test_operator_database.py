# SPDX-License-Identifier: BSD-3-Clause
"""Entries of torch's operator database with nothing on the CPU: correct, or in the list of missing kernels.

The tests cover a fixed quarter of the entries; OUTBOARD_TEST_SAMPLES=all covers all, as `make stress` does. They run in
a separate process: other tests here need operators that nothing has used before.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo

from torch_outboard.testing.database.entries import entries_of, run_entry
from torch_outboard.testing.database.lists import ON_NO_DEVICE

from .not_generated import NOT_GENERATED

# Of all that have values to compare.
REQUIRED_SHARE = 0.9


def _taken(dtype: torch.dtype, parts: int) -> list[OpInfo]:
    return entries_of(dtype, parts=1 if os.environ.get("OUTBOARD_TEST_SAMPLES") == "all" else parts)


pytestmark = pytest.mark.usefixtures("nothing_on_the_cpu")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", _taken(torch.float32, parts=4), ids=lambda info: info.full_name)
def test_entry(info: OpInfo, device: torch.device) -> None:
    state, reason = run_entry(info, torch.float32, 1, device)
    if info.full_name in NOT_GENERATED:
        assert state != "wrong" and state != "failed", reason
        assert state == "refused", f"{info.full_name} is {state}: take it off the list"
    else:
        assert state in ("right", "ran", "skipped"), f"{state}: {reason}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", _taken(torch.complex64, parts=20), ids=lambda info: info.full_name)
def test_complex_entry(info: OpInfo, device: torch.device) -> None:
    """Many have no kernels. A kernel is right."""
    state, reason = run_entry(info, torch.complex64, 1, device)
    assert state in ("refused", "right", "ran", "skipped"), f"{state}: {reason}"


def test_most_are_generated() -> None:
    assert 1 - (len(NOT_GENERATED) + len(ON_NO_DEVICE)) / len(entries_of(torch.float32)) >= REQUIRED_SHARE
