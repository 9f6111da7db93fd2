# SPDX-License-Identifier: BSD-3-Clause
"""All samples of the operator database, and the models that train to the CPU's losses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_outboard._discovery import found_drivers

TESTS = Path(__file__).resolve().parents[1]
SCHEDULED = [name for name, found in found_drivers().items() if "schedule" in found.load().options]


def run(*arguments: str, **variables: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        str(os.cpu_count() or 1),
        *arguments,
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")} | variables
    answer = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, env=environment)
    assert answer.returncode == 0, answer.stdout[-20_000:] + answer.stderr[-5_000:]


@pytest.mark.parametrize("driver", SCHEDULED)
def test_models(driver: str) -> None:
    run(str(TESTS / "models"), f"--driver={driver}")


@pytest.mark.parametrize("driver", SCHEDULED)
def test_all_samples_of_the_plain_calls(driver: str) -> None:
    """And of their gradients, with every element type; `make test` tries the first of each check."""
    tests = str(TESTS / "operators" / "test_opinfo.py")
    run(tests, "-k", "test_entry and forward-", f"--driver={driver}", OUTBOARD_TEST_SAMPLES="all")
