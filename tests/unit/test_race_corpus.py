# SPDX-License-Identifier: BSD-3-Clause
"""`outboard race` finds each race of tests/races, names its two lines, and reports nothing of the repaired twins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_outboard.race.runs import Program, Runner
from torch_outboard.race.search import Finding, Plan, search

RACES = sorted((Path(__file__).parent.parent / "races").glob("*.py"))
# Of the repaired twins; `make stress` runs twenty. For the races the first difference ends the
# search.
SEEDS = 20 if os.environ.get("OUTBOARD_TEST_LONG") else 6
OPTIONS = frozenset({"schedule", "steps", "depth", "changes", "poison"})
# The reader is NumPy, which the sanitizer does not see: it reports that nothing ever waits.
ONE_LINE = {"copy_to_numpy"}


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    started = Runner("sim", "sim", jobs=2, limit=60)
    yield started
    started.close()


def find(runner: Runner, path: Path, seeds: int, *arguments: str) -> Finding:
    program = Program("script", str(path), arguments)
    return search(Plan(program, "sim", "sim", OPTIONS, tuple(range(seeds))), runner, 2, lambda name: None)


def marked(path: Path) -> set[int]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if re.search(r"# (one|other)$", line)}


@pytest.mark.database
@pytest.mark.parametrize("path", RACES, ids=lambda path: path.stem)
def test_the_race_is_found(runner: Runner, path: Path) -> None:
    finding = find(runner, path, 20)
    assert finding.by == ["schedule", "sanitizer"], (finding.notes, finding.expected.errors)
    assert {Path(file) for file, _ in finding.lines} == {path}
    assert {line for _, line in finding.lines} == marked(path)
    assert len(marked(path)) == (1 if path.stem in ONE_LINE else 2)
    assert len(finding.races) == 1, [race["remedy"] for race in finding.races]
    assert not [note for note in finding.notes if "inline" in note]


@pytest.mark.database
@pytest.mark.parametrize("path", RACES, ids=lambda path: path.stem)
def test_the_repaired_twin_is_silent(runner: Runner, path: Path) -> None:
    finding = find(runner, path, SEEDS, "--repaired")
    assert finding.by == [], (finding.difference, [race["remedy"] for race in finding.races])
    assert finding.notes == [] and finding.runs == SEEDS + 2


def test_there_are_enough() -> None:
    assert len(RACES) >= 20
    for path in RACES:
        assert 10 <= len(path.read_text(encoding="utf-8").splitlines()) <= 40
