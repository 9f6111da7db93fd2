# SPDX-License-Identifier: BSD-3-Clause
"""What reaches a driver, where work runs as late as possible, in other orders: a missing wait gives wrong values."""

from __future__ import annotations

import pytest
from test_each_driver import RUNS

from .suites import run_suite

SUITES = ("tests/driver", "tests/amp/test_grad_scaler.py", *(f"tests/compile/test_{name}.py" for name in RUNS))


@pytest.mark.parametrize("seed", range(1, 5))
def test_work_runs_at_waits(seed: int) -> None:
    run_suite(*SUITES, "--driver=sim", f"--driver-option=schedule=lazy:{seed}")


def test_programs_of_their_own() -> None:
    """Programs that attach the simulated device themselves."""
    run_suite("tests/unit", OUTBOARD_SIM_SCHEDULE="lazy:1")
