# SPDX-License-Identifier: BSD-3-Clause
"""The examples that use libraries run, at a tiny size, and learn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEVICE = os.environ.get("OUTBOARD_ECOSYSTEM_DEVICE", "sim")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.parametrize(
    ("start", "line"),
    [
        ((), "finetune_gpt.py --steps 12 --width 32"),
        (TORCHRUN, "finetune_gpt.py --steps 12 --width 32 --bf16"),
        ((), "finetune_gpt.py --lora --steps 12 --width 32 --bf16"),
        ((), "lightning_digits.py --epochs 2"),
        ((), "lightning_digits.py --epochs 3 --devices 2 --precision bf16-mixed"),
        ((), "generate.py --tokens 8 --width 32"),
        ((), "generate.py --tokens 4 --width 32 --compile"),
        ((), "diffusion.py --steps 60 --width 32 --amp fp16"),
        ((), "diffusion.py --steps 60 --width 32 --compile"),
    ],
)
def test_it_runs_and_learns(start, line):
    name, *arguments = line.split()
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("OUTBOARD_", "ACCELERATE_"))}
    done = subprocess.run(
        [sys.executable, *start, str(EXAMPLES / name), "--device", DEVICE, *arguments],
        env=variables | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert DEVICE in done.stdout + done.stderr
    if start or "--devices" in arguments:
        assert "2 ranks" in done.stdout and "trains on the CPU" not in done.stderr


def test_they_are_short_enough_to_read():
    for name in ("finetune_gpt", "lightning_digits", "generate", "diffusion"):
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 120
