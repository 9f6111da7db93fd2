# SPDX-License-Identifier: BSD-3-Clause
"""Long compilations: all samples of the operator database, of which `make test` compiles the first, and ResNet-18."""

from __future__ import annotations

import pytest

from stress.suites import TESTS, run_suite
from torch_outboard._discovery import found_drivers

# One generator writes the same code for all drivers: drivers with schedules stand
# for the others, as in the tests.
COMPILED = [
    name
    for name, driver in ((name, entry.load()) for name, entry in found_drivers().items())
    if driver.code_generator is not None and "schedule" in driver.options
]


@pytest.mark.parametrize("driver", COMPILED)
def test_all_samples(driver: str) -> None:
    tests = str(TESTS / "operators" / "test_compiled.py")
    run_suite(tests, f"--driver={driver}", OUTBOARD_TEST_SAMPLES="all")


@pytest.mark.parametrize("driver", COMPILED)
def test_models_that_take_long(driver: str) -> None:
    tests = str(TESTS / "compile" / "test_real_models.py")
    run_suite(tests, f"--driver={driver}", "-m", "long", OUTBOARD_TEST_LONG="1")
