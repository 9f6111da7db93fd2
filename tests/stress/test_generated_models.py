# SPDX-License-Identifier: BSD-3-Clause
"""Generated kernels: whole models, the whole operator database, and the tests that take long."""

from __future__ import annotations

import pytest

from stress.suites import TESTS, run_suite, skip_without_device

# The second has the kernels of a GPU.
TARGETS = pytest.mark.parametrize("target", [f"tests.simt_drivers:{name}" for name in ("DiscreteOpenCL", "Groups")])


@TARGETS
def test_they_train_and_generate(target: str) -> None:
    skip_without_device(target)
    run_suite(str(TESTS / "kernels" / "test_models.py"), f"--driver={target}", OUTBOARD_TEST_LONG="1")


@TARGETS
def test_attention(target: str) -> None:
    skip_without_device(target)
    run_suite(str(TESTS / "kernels" / "test_attention.py"), f"--driver={target}", OUTBOARD_TEST_LONG="1")


@TARGETS
def test_kernels_that_take_long(target: str) -> None:
    skip_without_device(target)
    names = ("gradients", "convolutions", "embedding_bags", "linear_algebra")
    files = [str(TESTS / "kernels" / f"test_{name}.py") for name in names]
    run_suite(*files, f"--driver={target}", "-m", "long", OUTBOARD_TEST_LONG="1")


def test_kernels_for_more_chips() -> None:
    others = map(str, TESTS.parent.glob("distributions/*/tests"))
    run_suite(str(TESTS / "native" / "test_native.py"), *others, "-m", "long", OUTBOARD_TEST_LONG="1")


def test_attention_by_units_in_plain_c() -> None:
    target = "tests.simt_drivers:Units"
    skip_without_device(target)
    units = str(TESTS / "kernels" / "test_matrix_units.py")
    run_suite(units, f"--driver={target}", "-k", "attention", OUTBOARD_TEST_LONG="1")


@TARGETS
def test_the_operator_database(target: str) -> None:
    skip_without_device(target)
    tests = str(TESTS / "kernels" / "test_operator_database.py")
    run_suite(tests, f"--driver={target}", OUTBOARD_TEST_SAMPLES="all")


@TARGETS
def test_operators_over_lists(target: str) -> None:
    files = [str(TESTS / "kernels" / f"test_{name}.py") for name in ("lists", "optimizer_steps")]
    run_suite(*files, f"--driver={target}", OUTBOARD_TEST_SAMPLES="all")
