# SPDX-License-Identifier: BSD-3-Clause
"""The benchmarks of models refuse a model that does not exist, before they start a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


@pytest.mark.parametrize("script", ["models.py", "first_steps.py"])
def test_an_unknown_model_is_refused(script: str) -> None:
    command = [sys.executable, BENCHMARKS / script, "--only", "resnet50,resnet51"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 2
    assert "argument --only: there is no model resnet51: choose of resnet50, " in answer.stderr
