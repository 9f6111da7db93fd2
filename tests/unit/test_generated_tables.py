# SPDX-License-Identifier: BSD-3-Clause
"""The table of meta kernels equals what its script would write today. tests/stress checks the table of overlaps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_meta_kernels() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "meta_table"), "--check"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
