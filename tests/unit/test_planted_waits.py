# SPDX-License-Identifier: BSD-3-Clause
"""Twenty seeds show a wait that is missing behind 0 to 64 operators, with equal values each round too.

`make stress` runs a hundred trials, in parts.
"""

from __future__ import annotations

import json
import os

import pytest

from torch_outboard.testing.plugin import RunPython

IMPORTS = ("unit.planted_waits",)
_IS_LONG = os.environ.get("OUTBOARD_TEST_LONG") == "1"
TRIALS = 25 if _IS_LONG else 2
FIRST = (0, 25, 50, 75) if _IS_LONG else (0,)


@pytest.mark.database
@pytest.mark.parametrize("first", FIRST)
def test_twenty_seeds_show_a_missing_wait(run_python: RunPython, first: int) -> None:
    code = f"from unit import planted_waits; planted_waits.print_found({first}, {TRIALS})"
    answer = run_python(code, imports=IMPORTS)
    counts = json.loads(answer.stdout.splitlines()[-1])
    assert len(counts) == 40
    rare = [row for row in counts if row[-1] < 0.95 * TRIALS]
    assert not rare, rare


@pytest.mark.database
def test_the_repaired_twins_are_right(run_python: RunPython) -> None:
    code = "from unit import planted_waits as at; assert at.hidden_in(0, True) == list(at.programs(True))"
    seeds = 20 if _IS_LONG else 3
    run_python(f"from unit import planted_waits; planted_waits.SEEDS = {seeds}; {code}", imports=IMPORTS)
