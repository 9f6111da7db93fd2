# SPDX-License-Identifier: BSD-3-Clause
"""Each call of each entry fails once: `make test` sweeps a share of the entries, this all of them."""

from __future__ import annotations

from .suites import run_suite


def test_each_failing_call_of_every_entry() -> None:
    run_suite("tests/unit/test_each_failing_call.py", OUTBOARD_TEST_SHARE="1/1")


def test_each_call_of_a_training_step() -> None:
    run_suite("tests/unit/test_fail_each.py", OUTBOARD_TEST_LONG="1")
