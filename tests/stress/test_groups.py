# SPDX-License-Identifier: BSD-3-Clause
"""Process groups: the tests of their failures again and again, and their collectives under many orders of work."""

from __future__ import annotations

import pytest

from .suites import run_suite

FAILURES = "fail or killed or hangs or leave_no"


@pytest.mark.parametrize("time", range(50))
def test_failures_of_groups(time) -> None:
    run_suite("tests/distributed", "-k", FAILURES)


def test_collectives_of_the_simulated_device_under_seeds() -> None:
    run_suite(
        "tests/distributed", "-k", "every_collective_of_the_simulated", TEST_SEEDS=" ".join(map(str, range(1, 21)))
    )
