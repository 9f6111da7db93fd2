# SPDX-License-Identifier: BSD-3-Clause
"""The table of overlaps equals what its script would write today. The script calls all of the operator database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_overlaps() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "overlap_table"), "--check"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
