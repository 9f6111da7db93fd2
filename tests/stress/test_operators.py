# SPDX-License-Identifier: BSD-3-Clause
"""All questions of the operator, module and optimizer databases, and the models that train to the CPU's losses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_outboard._discovery import found_drivers

TESTS = Path(__file__).resolve().parents[1]
SCHEDULED = [name for name, found in found_drivers().items() if "schedule" in found.load().options]


@pytest.mark.parametrize("driver", SCHEDULED)
@pytest.mark.parametrize("folder", ["operators", "models"])
def test_against_the_cpu(folder: str, driver: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(os.cpu_count() or 1)]
    command += [str(TESTS / folder), f"--driver={driver}"]
    command += [f"--ignore={TESTS / 'operators' / 'test_compiled.py'}"]  # test_compiled_operators.py
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment["OUTBOARD_TEST_SAMPLES"] = "all"
    answer = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, env=environment)
    assert answer.returncode == 0, answer.stdout[-20_000:] + answer.stderr[-5_000:]
