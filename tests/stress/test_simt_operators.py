# SPDX-License-Identifier: BSD-3-Clause
"""The operator database under torch.compile with kernels in each dialect: the first sample of each entry, 0 wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

HAS_DEVICE = "import sys, torch_outboard; sys.exit(0 if torch_outboard.attach(sys.argv[1]).device_count() else 3)"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    path = os.pathsep.join([str(TESTS.parent), *(entry for entry in sys.path if entry)])
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=TESTS.parent, capture_output=True, text=True, env={**environment, "PYTHONPATH": path}
    )


@pytest.mark.parametrize("driver", ["HostCpp", "OpenCLC"])
def test_every_entry(driver: str) -> None:
    target = f"tests.simt_drivers:{driver}"
    asked = _run("-c", HAS_DEVICE, target)
    assert asked.returncode in (0, 3), asked.stderr
    if asked.returncode == 3:
        pytest.skip(f"capability: a device of {driver}")
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(os.cpu_count() or 1), f"--driver={target}"]
    answer = _run(*options, str(TESTS / "operators" / "test_compiled.py"))
    assert answer.returncode == 0, answer.stdout[-20_000:] + answer.stderr[-5_000:]
