# SPDX-License-Identifier: BSD-3-Clause
"""The table of meta kernels equals what its script would write today. tests/stress checks the table of overlaps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def check_table(script: str) -> None:
    answer = subprocess.run([sys.executable, str(SCRIPTS / script), "--check"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_table_of_meta_kernels() -> None:
    check_table("meta_table")
