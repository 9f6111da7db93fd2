# SPDX-License-Identifier: BSD-3-Clause
"""Runs of whole test suites in separate processes, on all cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
_HAS_DEVICE = "import sys, torch_outboard; sys.exit(0 if torch_outboard.attach(sys.argv[1]).device_count() else 3)"


def run_python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    # A worker of pytest-xdist must not hand its own identity down to the pytest that it starts.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")} | variables
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, env=environment)


def run_suite(*arguments: str, **variables: str) -> None:
    """Run pytest with the arguments and environment variables; fail with its output if a test fails."""
    workers = ["-n", str(os.cpu_count() or 1)]
    answer = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, *arguments, **variables)
    assert answer.returncode == 0, answer.stdout[-20_000:] + answer.stderr[-5_000:]


def skip_without_device(target: str) -> None:
    """Skip the test if the driver counts no device."""
    answer = run_python("-c", _HAS_DEVICE, target)
    assert answer.returncode in (0, 3), answer.stderr
    if answer.returncode == 3:
        pytest.skip(f"capability: a device of {target}")
