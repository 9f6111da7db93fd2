# SPDX-License-Identifier: BSD-3-Clause
"""TorchTitan's debug model trains on one rank and on two to the CPU's losses, from a checkpoint that the device wrote.

TorchTitan needs a later torch than `make test-ecosystem` has; docs/integrations.md says how to install and test it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .test_libraries import DEVICE, TORCHRUN

PROGRAM = Path(__file__).parent / "programs" / "titan.py"
pytestmark = pytest.mark.skipif(
    find_spec("torchtitan") is None, reason="capability: TorchTitan, which is not installed"
)
OPTIONS = ["--module=llama3", "--config=llama3_debugmodel", "--training.seq_len=128", "--training.steps=5"]
OPTIONS += ["--training.mixed_precision_param=float32", "--training.disable_cuda_graphs", "--checkpoint.enable"]
OPTIONS += ["--metrics.disable_color_printing"]


def run(folder, *arguments, ranks=0):
    variables = {key: value for key, value in os.environ.items() if not key.startswith("OUTBOARD_")}
    variables |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    start = (*TORCHRUN[:-1], f"--nproc-per-node={ranks}") if ranks else ()
    command = [sys.executable, *start, str(PROGRAM), *arguments]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def losses(folder, device, ranks):
    """Train from the first checkpoint, and return each rank's lines of steps, losses and norms of gradients."""
    output = folder / f"{device}-{ranks}"
    shutil.copytree(folder / "first", output)
    batch = f"--training.local_batch_size={4 // ranks}"
    printed = run(folder, device, *OPTIONS, batch, f"--dump_folder={output}", ranks=ranks)
    return re.findall(r"step: +(\d+) +loss: +([\d.]+) +grad_norm: +([\d.]+)", printed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("titan")
    run(folder, "assets")
    run(folder, DEVICE, *OPTIONS, "--checkpoint.create_seed_checkpoint", f"--dump_folder={folder / 'first'}", ranks=1)
    return folder


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_debug_model_trains_to_the_cpus_losses(folder, ranks):
    losses_of_device, expected = losses(folder, DEVICE, ranks), losses(folder, "cpu", ranks)
    assert len(losses_of_device) == len(expected) == 5 * ranks
    for numbers, wanted in zip(sorted(losses_of_device), sorted(expected), strict=True):
        assert list(map(float, numbers)) == pytest.approx(list(map(float, wanted)), rel=1e-4)
