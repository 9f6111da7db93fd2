# SPDX-License-Identifier: BSD-3-Clause
"""The table of wrong values names every operator for whose values a call waits."""

from __future__ import annotations

from driver.value_checks import AT_CALL, AT_WAIT

from torch_outboard.kernels.book import table
from torch_outboard.kernels.operators import base_name


def test_every_operator_that_raises_at_the_call_is_tested() -> None:
    rows = [(name, row.facts) for subject in table.SUBJECTS for row in subject.OPERATORS for name in row.names.split()]
    for kind in ("check_values", "raises_at_call"):
        operators = {base_name(name).removeprefix("aten::") for name, facts in rows if getattr(facts, kind, False)}
        assert operators
        assert operators - {"_linalg_eigvals"} <= AT_CALL.keys()  # it waits for all that it computes from


def test_no_operator_is_in_both() -> None:
    assert not AT_CALL.keys() & AT_WAIT.keys()
