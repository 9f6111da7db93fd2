# SPDX-License-Identifier: BSD-3-Clause
"""Whole models by generated kernels, on a device whose memory the host can't reach."""

from __future__ import annotations

from stress.suites import TESTS, run_suite, skip_without_device

TARGET = "tests.simt_drivers:Apart"


def test_they_train_and_generate() -> None:
    skip_without_device(TARGET)
    run_suite(str(TESTS / "kernels" / "test_models.py"), f"--driver={TARGET}", OUTBOARD_TEST_MODELS="all")
