# SPDX-License-Identifier: BSD-3-Clause
"""Every entry of torch's operator database on the attached device, against the CPU.

Of each entry the first eight samples are tried, and of the others those with new shapes, 32 at most, with float32 and
one other element type; forward, and gradients where the entry has them.
"""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo

from . import lists
from .harness import check
from .samples import dtype_name, entries, entry_name

# The share of entries that must not stand in a list.
REQUIRED_SHARE = 0.98


def _parameters():
    for info, dtype in entries():
        gap = lists.gap(info.full_name, dtype_name(dtype))
        marks = []
        if gap is not None:
            marks.append(pytest.mark.xfail(strict=True, run=not gap.crashes, reason=gap.reason))
        yield pytest.param(info, dtype, id=entry_name(info, dtype), marks=marks)


@pytest.mark.parametrize("info,dtype", list(_parameters()))
def test_entry(info: OpInfo, dtype: torch.dtype | None, device: torch.device, record_property):
    report = check(info, dtype, device)
    if report.strides:
        record_property("strides", "; ".join(report.strides[:4]))
    assert not report.failures, "\n".join(map(str, report.failures[:8]))


def test_nearly_all_entries_must_pass():
    names = {info.full_name for info, _ in entries()}
    listed = set(lists.NEVER) | set(lists.NOT_YET)
    assert 1 - len(listed) / len(names) >= REQUIRED_SHARE


@pytest.mark.parametrize("names", [lists.NEVER, lists.NOT_YET, lists.RANDOM, lists.TOLERANCES, lists.HOST_ARGUMENTS])
def test_lists_name_entries_that_exist(names):
    assert set(names) <= {info.full_name for info, _ in entries()}


def test_no_entry_is_in_both_lists_and_each_has_a_reason():
    assert not set(lists.NEVER) & set(lists.NOT_YET)
    assert all(gap.reason for gap in [*lists.NEVER.values(), *lists.NOT_YET.values()])
