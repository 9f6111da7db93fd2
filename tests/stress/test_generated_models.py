# SPDX-License-Identifier: BSD-3-Clause
"""Whole models, and the whole operator database, by generated kernels, if the host cannot reach the memory."""

from __future__ import annotations

import pytest

from stress.suites import TESTS, run_suite, skip_without_device

# The second has the kernels of a GPU.
TARGETS = pytest.mark.parametrize("target", [f"tests.simt_drivers:{name}" for name in ("Apart", "Groups")])


@TARGETS
def test_they_train_and_generate(target: str) -> None:
    skip_without_device(target)
    run_suite(str(TESTS / "kernels" / "test_models.py"), f"--driver={target}", OUTBOARD_TEST_MODELS="all")


@TARGETS
def test_attention(target: str) -> None:
    skip_without_device(target)
    run_suite(str(TESTS / "kernels" / "test_attention.py"), f"--driver={target}", OUTBOARD_TEST_MODELS="all")


def test_attention_by_units_in_plain_c() -> None:
    target = "tests.simt_drivers:Units"
    skip_without_device(target)
    units = str(TESTS / "kernels" / "test_matrix_units.py")
    run_suite(units, f"--driver={target}", "-k", "attention", OUTBOARD_TEST_MODELS="all")


@TARGETS
def test_the_operator_database(target: str) -> None:
    skip_without_device(target)
    tests = str(TESTS / "kernels" / "test_operator_database.py")
    run_suite(tests, f"--driver={target}", OUTBOARD_TEST_SAMPLES="all")


@TARGETS
def test_operators_over_lists(target: str) -> None:
    files = [str(TESTS / "kernels" / f"test_{name}.py") for name in ("lists", "optimizer_steps")]
    run_suite(*files, f"--driver={target}", OUTBOARD_TEST_SAMPLES="all")
