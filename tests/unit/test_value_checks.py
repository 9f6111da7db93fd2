# SPDX-License-Identifier: BSD-3-Clause
"""The table of wrong values names every operator for whose values a call waits."""

from __future__ import annotations

import re
from pathlib import Path

from driver.value_checks import AT_CALL, AT_WAIT

from .contract import ROOT


def _names(path: Path, pattern: str) -> set[str]:
    return set(re.findall(pattern, path.read_text()))


def test_every_operator_that_raises_at_the_call_is_tested() -> None:
    rows = _names(ROOT / "csrc/ops/call/bad_values.cpp", r'ValueRow\{"aten::(\w+)"')
    facts = _names(ROOT / "csrc/ops/operator/facts.cpp", r'Of\{"aten::(\w+)", \{[^}]*\.raises_at_call')
    assert rows
    assert facts
    assert (rows | facts) - {"_linalg_eigvals"} <= AT_CALL.keys()  # it waits for all that it computes from


def test_no_operator_is_in_both() -> None:
    assert not AT_CALL.keys() & AT_WAIT.keys()
