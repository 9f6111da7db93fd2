# SPDX-License-Identifier: BSD-3-Clause
"""Races: trials of planted waits, repaired programs under twenty seeds, and our suites, which have no race."""

from __future__ import annotations

import pytest

from .suites import run_suite


def test_planted_waits_are_found() -> None:
    run_suite("tests/unit/test_planted_waits.py", OUTBOARD_TEST_LONG="1")


def test_repaired_programs_are_silent() -> None:
    run_suite("tests/unit/test_race_corpus.py", OUTBOARD_TEST_LONG="1")


@pytest.mark.parametrize("suite", ["driver", "amp", "models", "compile"])
def test_the_sanitizer_has_no_report(suite: str) -> None:
    # Those of the sanitizer itself, and of what it sees, leave it disabled.
    own = [f"--deselect=tests/driver/test_{name}.py" for name in ("sanitizer", "launch", "device_programs")]
    run_suite(f"tests/{suite}", "--driver=sim", *own, OUTBOARD_SANITIZER="raise")
