# SPDX-License-Identifier: BSD-3-Clause
"""Drawn calls of operators agree with the CPU's: results, refusals, and the memory around the arguments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stress.suites import run_python, skip_without_device

CALLS = int(os.environ.get("OUTBOARD_FUZZ_CALLS", "20000"))
STEPS = {"sim": 20_000, "opencl": 3_000}
SHARES = 4  # processes one after the other, so that the memory of one stays small


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize(
    ("driver", "variables"),
    [("sim", {}), ("opencl", {"OUTBOARD_OCL_HOST_ACCESS": "0", "OUTBOARD_FALLBACK": "silent"})],
)
def test_drawn_calls(driver: str, variables: dict[str, str], share: int, tmp_path: Path) -> None:
    skip_without_device(driver)
    notes = tmp_path / "notes"
    arguments = ["--driver", driver, "--share", f"{share}/{SHARES}", "--calls", str(CALLS // SHARES)]
    answer = run_python("-m", "tests.operators.fuzz", *arguments, OUTBOARD_FUZZ_NOTES=str(notes), **variables)
    last = notes.read_text().strip() if notes.exists() else ""
    assert answer.returncode == 0, f"{answer.stdout[-20_000:]}\n{answer.stderr[-5_000:]}\nlast call: {last}"


@pytest.mark.parametrize(
    ("driver", "variables"),
    [("sim", {}), ("opencl", {"OUTBOARD_OCL_HOST_ACCESS": "0", "OUTBOARD_FALLBACK": "silent", "OMP_NUM_THREADS": "1"})],
)
def test_drawn_programs(driver: str, variables: dict[str, str]) -> None:
    skip_without_device(driver)
    answer = run_python(
        "-m", "tests.operators.programs", "--driver", driver, "--steps", str(STEPS[driver]), **variables
    )
    assert answer.returncode == 0, f"{answer.stdout[-20_000:]}\n{answer.stderr[-5_000:]}"
