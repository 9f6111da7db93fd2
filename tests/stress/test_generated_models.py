# SPDX-License-Identifier: BSD-3-Clause
"""Whole models, and all of the operator database, by generated kernels where the host can't reach the memory."""

from __future__ import annotations

from stress.suites import TESTS, run_suite, skip_without_device

TARGET = "tests.simt_drivers:Apart"


def test_they_train_and_generate() -> None:
    skip_without_device(TARGET)
    run_suite(str(TESTS / "kernels" / "test_models.py"), f"--driver={TARGET}", OUTBOARD_TEST_MODELS="all")


def test_the_operator_database() -> None:
    skip_without_device(TARGET)
    tests = str(TESTS / "kernels" / "test_operator_database.py")
    run_suite(tests, f"--driver={TARGET}", OUTBOARD_TEST_SAMPLES="all")
