# SPDX-License-Identifier: BSD-3-Clause
"""Races: a hundred trials of each planted wait, and twenty seeds of each repaired program."""

from __future__ import annotations

from .suites import run_suite


def test_planted_waits_are_found() -> None:
    run_suite("tests/unit/test_planted_waits.py", OUTBOARD_TEST_LONG="1")


def test_repaired_programs_are_silent() -> None:
    run_suite("tests/unit/test_race_corpus.py", OUTBOARD_TEST_LONG="1")
