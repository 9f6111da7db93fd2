# SPDX-License-Identifier: BSD-3-Clause
"""All samples of the operator database under torch.compile; `make test` compiles the first of each entry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_outboard._discovery import found_drivers

TESTS = Path(__file__).resolve().parents[1]
# The same generator gives all drivers the same code: those with schedules stand for the others, as in the tests.
COMPILED = [
    name
    for name, driver in ((name, found.load()) for name, found in found_drivers().items())
    if driver.code_generator is not None and "schedule" in driver.options
]


@pytest.mark.parametrize("driver", COMPILED)
def test_all_samples(driver: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(os.cpu_count() or 1)]
    command += [str(TESTS / "operators" / "test_compiled.py"), f"--driver={driver}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment["OUTBOARD_TEST_SAMPLES"] = "all"
    answer = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, env=environment)
    assert answer.returncode == 0, answer.stdout[-20_000:] + answer.stderr[-5_000:]
