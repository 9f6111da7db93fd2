# SPDX-License-Identifier: BSD-3-Clause
"""Every entry of torch's operator database on the attached device, against the CPU: each check of `checks/`.

`make test` tries the first samples; OUTBOARD_TEST_SAMPLES=all tries up to 32 of each, with every element type. To run
one check alone: `-k forward-add-float32`, `-k out-`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db

from torch_outboard.testing.database.lists import HOST_ARGUMENTS, RANDOM

from . import lists
from .checks import CHECKS, Case, cases
from .harness import Failure, Report
from .samples import ALL_SAMPLES, dtype_name

# torch warns so at each allocation, also in a test's last calls, whose
# warnings the wait at its end reports.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

# The share of entries that must not stand in a check's list.
REQUIRED_SHARE = 0.95
REQUIRED_SHARES = {"forward": 0.98, "broadcasting": 0.9}

CASES = list(cases())


def _parameters() -> Iterator[Any]:
    for case in CASES:
        gap = lists.gap(case.check.name, case.info.full_name, dtype_name(case.dtype), all_samples=ALL_SAMPLES)
        marks = []
        if gap is not None:
            marks.append(pytest.mark.xfail(strict=True, run=not gap.crashes, reason=gap.reason))
        yield pytest.param(case, id=case.name, marks=marks)


def report_of(case: Case, device: torch.device) -> Report:
    if case.dtype is None:
        return Report(failures=[Failure("no dtype", "0", "the entry supports no element type on the CPU")])
    return case.check(case.info, case.dtype, device).run()


@pytest.mark.parametrize("case", list(_parameters()))
def test_entry(case: Case, device: torch.device) -> None:
    report = report_of(case, device)
    assert not report.failures, "\n".join(map(str, report.failures[:8]))


def _names(check: str) -> set[str]:
    """Return the names that entries of a check's lists may have."""
    if check == "modules":
        return {info.name for info in module_db}
    if check == "optimizers":
        return {info.optim_cls.__name__ for info in optim_db}
    return {case.info.full_name for case in CASES if case.check.name == check}


LISTS = {"NOT_YET": lists.NOT_YET, "NOTHING_TO_COMPARE": lists.NOTHING_TO_COMPARE}


@pytest.mark.parametrize("name", LISTS)
def test_lists_name_checks_and_entries_that_exist(name: str) -> None:
    for check, entries in LISTS[name].items():
        assert set(entries) <= _names(check), check


@pytest.mark.parametrize(
    "names",
    [
        lists.NEVER,
        RANDOM,
        lists.TOLERANCES,
        HOST_ARGUMENTS,
        lists.ENLARGED_IN_PLACE,
        lists.CRASH_ON_CPU,
        lists.UNDEFINED_INTO_EMPTY,
    ],
)
def test_what_is_known_of_entries_is_of_some_that_exist(names: Collection[str]) -> None:
    assert set(names) <= _names("forward") | lists.OF_NEWER_TORCH


def test_no_entry_is_in_two_lists_and_each_has_a_reason() -> None:
    for entries in lists.NOT_YET.values():
        assert not set(lists.NEVER) & set(entries)
        assert all(gap.reason for gaps in entries.values() for gap in gaps)
        for gaps in entries.values():
            dtypes = [dtype for gap in gaps for dtype in gap.dtypes or ["all"]]
            assert len(dtypes) == len(set(dtypes))
    assert all(gap.reason for gap in lists.NEVER.values())


@pytest.mark.parametrize("check", [check.name for check in CHECKS])
def test_nearly_all_entries_must_pass(check: str) -> None:
    listed = set(lists.NEVER) & _names(check) | set(lists.NOT_YET.get(check, {}))
    assert 1 - len(listed) / len(_names(check)) >= REQUIRED_SHARES.get(check, REQUIRED_SHARE)


def test_every_entry_that_torch_says_has_a_variant_is_asked_for_it() -> None:
    assert len(_names("forward")) == len(op_db)
    assert _names("out") == {info.full_name for info in op_db if info.supports_out and info.supported_dtypes("cpu")}
    claimed = {(info.full_name, dtype) for info in op_db for dtype in info.supported_dtypes("cpu")}
    assert claimed == {
        (case.info.full_name, case.dtype) for case in CASES if case.check.name == "forward" and case.dtype
    }
