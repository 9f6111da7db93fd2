# SPDX-License-Identifier: BSD-3-Clause
"""Numbers inside, at and beyond the types' limits: every operator with every type, eager and compiled."""

from __future__ import annotations

import pytest

from stress.suites import TESTS, run_suite, skip_without_device

GENERATED = "tests.simt_drivers:DiscreteOpenCL"


def test_eager() -> None:
    skip_without_device(GENERATED)
    run_suite(str(TESTS / "kernels" / "test_numbers.py"), f"--driver={GENERATED}", OUTBOARD_TEST_SAMPLES="all")


@pytest.mark.parametrize("driver", ["sim", GENERATED])
def test_compiled(driver: str) -> None:
    skip_without_device(driver)
    run_suite(str(TESTS / "compile" / "test_numbers.py"), f"--driver={driver}", OUTBOARD_TEST_SAMPLES="all")
