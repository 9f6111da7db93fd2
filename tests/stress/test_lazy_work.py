# SPDX-License-Identifier: BSD-3-Clause
"""What reaches a driver, where work runs as late as possible, in other orders: a missing wait gives wrong values."""

from __future__ import annotations

import pytest

from .suites import run_suite

# Of the compiler's tests those whose launches and graphs reach the driver.
SUITES = (
    "tests/driver",
    "tests/amp/test_grad_scaler.py",
    *(f"tests/compile/test_{name}.py" for name in ("random", "reduce_overhead", "streams")),
)


@pytest.mark.parametrize("seed", range(1, 5))
def test_work_runs_at_waits(seed: int) -> None:
    run_suite(*SUITES, "--driver=sim", f"--driver-option=schedule=lazy:{seed}")


def test_what_needs_no_driver_option() -> None:
    """Programs that attach the simulated device themselves."""
    run_suite("tests/unit", OUTBOARD_SIM_SCHEDULE="lazy:1")
