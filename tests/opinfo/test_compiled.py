# SPDX-License-Identifier: BSD-3-Clause
"""Entries of torch's operator database under torch.compile on the attached device, against the eager call there.

The first sample of each entry with float32; OUTBOARD_TEST_SAMPLES=all takes all of them.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

import torch_outboard

from . import compiled_lists
from .compiled import check_compiled

# The share of what passes on the CPU that must pass on the device.
REQUIRED_SHARE = 0.95

ENTRIES = [info for info in op_db if torch.float32 in info.supported_dtypes("cpu")]


def _parameters():
    for info in ENTRIES:
        gap = compiled_lists.gap(info.full_name)
        marks = []
        if gap is not None:
            marks.append(pytest.mark.xfail(strict=True, run=not gap.crashes, reason=gap.reason))
        yield pytest.param(info, id=info.full_name, marks=marks)


@pytest.fixture(scope="module", autouse=True)
def _compiles(tmp_path_factory: pytest.TempPathFactory, driver_name: str):
    driver = torch_outboard.attached_driver()
    assert driver is not None
    if driver.code_generator is None:
        pytest.skip(f"capability: a code generator. {driver_name} names none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.mark.parametrize("info", list(_parameters()))
def test_entry(info: OpInfo, device: torch.device):
    samples = None if os.environ.get("OUTBOARD_TEST_SAMPLES") == "all" else 1
    report = check_compiled(info, device, samples)
    assert not report.failures, "\n".join(map(str, report.failures[:8]))


def test_nearly_all_that_compiles_on_the_cpu_must_pass():
    possible = {info.full_name for info in ENTRIES} - set(compiled_lists.ON_NO_DEVICE)
    assert 1 - len(compiled_lists.NOT_YET) / len(possible) >= REQUIRED_SHARE


@pytest.mark.parametrize("names", [compiled_lists.ON_NO_DEVICE, compiled_lists.NOT_YET, compiled_lists.CLOSE])
def test_lists_name_entries_that_exist(names):
    assert set(names) <= {info.full_name for info in ENTRIES}


def test_no_entry_is_in_both_lists_and_each_has_a_reason():
    assert not set(compiled_lists.ON_NO_DEVICE) & set(compiled_lists.NOT_YET)
    assert all(gap.reason for gap in [*compiled_lists.ON_NO_DEVICE.values(), *compiled_lists.NOT_YET.values()])
