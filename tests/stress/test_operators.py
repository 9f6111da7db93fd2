# SPDX-License-Identifier: BSD-3-Clause
"""All samples of the operator database, and the models that train to the CPU's losses."""

from __future__ import annotations

import pytest

from stress.suites import TESTS, run_suite
from torch_outboard._discovery import found_drivers

SCHEDULED = [name for name, entry in found_drivers().items() if "schedule" in entry.load().options]


@pytest.mark.parametrize("driver", SCHEDULED)
def test_models(driver: str) -> None:
    run_suite(str(TESTS / "models"), f"--driver={driver}")


@pytest.mark.parametrize("driver", SCHEDULED)
def test_all_samples_of_the_plain_calls(driver: str) -> None:
    """The gradients too, with every element type; `make test` tries the first sample of each check."""
    tests = str(TESTS / "operators" / "test_opinfo.py")
    run_suite(tests, "-k", "test_entry and forward-", f"--driver={driver}", OUTBOARD_TEST_SAMPLES="all")
