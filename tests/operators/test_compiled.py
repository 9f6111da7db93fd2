# SPDX-License-Identifier: BSD-3-Clause
"""Entries of torch's operator database under torch.compile on the attached device, against the eager call there.

The tests cover the first float32 sample of every other entry, many entries in a graph, and of each listed entry;
OUTBOARD_TEST_SAMPLES=all covers all samples of all entries, each in a separate graph.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

import torch_outboard
from torch_outboard.testing.database.lists import RANDOM, UNINITIALISED

from . import compiled_lists
from .compiled import check_compiled, check_compiled_together

# The share of what passes on the CPU that must pass on the device.
REQUIRED_SHARE = 0.95

ALL_SAMPLES = os.environ.get("OUTBOARD_TEST_SAMPLES") == "all"
ENTRIES = [info for info in op_db if torch.float32 in info.supported_dtypes("cpu")]


# Entries in one graph.
ENTRIES_PER_GRAPH = 16


def _is_alone(info: OpInfo) -> bool:
    """Return whether an entry has a separate graph, because it draws numbers or must fail."""
    return (
        ALL_SAMPLES
        or info.full_name in RANDOM | UNINITIALISED
        or compiled_lists.gap(info.full_name, all_samples=ALL_SAMPLES) is not None
    )


def _alone():
    for info in filter(_is_alone, ENTRIES):
        gap = compiled_lists.gap(info.full_name, all_samples=ALL_SAMPLES)
        marks = []
        if gap is not None:
            marks.append(pytest.mark.xfail(strict=True, run=not gap.crashes, reason=gap.reason))
        yield pytest.param(info, id=info.full_name, marks=marks)


def _together():
    entries = [info for info in ENTRIES if not _is_alone(info)][::2]
    for start in range(0, len(entries), ENTRIES_PER_GRAPH):
        group = entries[start : start + ENTRIES_PER_GRAPH]
        yield pytest.param(group, id=f"{group[0].full_name}-{group[-1].full_name}")


@pytest.fixture(scope="module", autouse=True)
def _compiles(tmp_path_factory: pytest.TempPathFactory, driver_name: str):
    driver = torch_outboard.attached_driver()
    assert driver is not None
    if driver.code_generator is None:
        pytest.skip(f"capability: a code generator. {driver_name} names none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.mark.parametrize("info", list(_alone()))
def test_entry(info: OpInfo, device: torch.device):
    report = check_compiled(info, device, None if ALL_SAMPLES else 1)
    assert not report.failures, "\n".join(map(str, report.failures[:8]))


@pytest.mark.parametrize("infos", list(_together()))
def test_entries_together(infos: list[OpInfo], device: torch.device):
    report = check_compiled_together(infos, device)
    assert not report.failures, "\n".join(map(str, report.failures[:8]))


def test_nearly_all_that_compiles_on_the_cpu_must_pass():
    possible = {info.full_name for info in ENTRIES} - set(compiled_lists.ON_NO_DEVICE)
    assert 1 - len(compiled_lists.NOT_YET | compiled_lists.ALL_NOT_YET) / len(possible) >= REQUIRED_SHARE


LISTS = ("ON_NO_DEVICE", "NOT_YET", "ALL_ON_NO_DEVICE", "ALL_NOT_YET")


@pytest.mark.parametrize("name", [*LISTS, "CLOSE"])
def test_lists_name_entries_that_exist_and_say_why(name):
    listed = getattr(compiled_lists, name)
    assert set(listed) <= {info.full_name for info in ENTRIES}
    assert all(entry.reason for entry in listed.values())


def test_no_entry_is_in_two_lists():
    names = [name for listed in LISTS for name in getattr(compiled_lists, listed)]
    assert len(names) == len(set(names))
