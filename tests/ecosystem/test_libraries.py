# SPDX-License-Identifier: BSD-3-Clause
"""Libraries train on the device to the CPU's losses: on one device, on two ranks, in mixed precision."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "trains.py"
DEVICE = os.environ.get("OUTBOARD_ECOSYSTEM_DEVICE", "sim")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
LAUNCH = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2")


def run(*arguments, start=(), env=None, status=0):
    """Run the program, and return what each rank has told, and the standard error."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("OUTBOARD_", "ACCELERATE_"))}
    variables |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **(env or {})}
    done = subprocess.run(
        [sys.executable, *start, str(PROGRAM), *arguments], env=variables, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == status, done.stdout[-3000:] + done.stderr[-6000:]
    lines = re.findall(r"LOSSES (\d+) (\{.*?\})", done.stdout)
    return {int(rank): json.loads(text) for rank, text in lines}, done.stderr


@functools.cache
def on_cpu(library, *arguments, start=()):
    reports, _ = run(library, "--device", "cpu", *arguments, start=start)
    return reports[0]["losses"]


@pytest.mark.parametrize("library", ["accelerate", "trainer", "peft", "trl", "lightning", "fabric"])
def test_one_device(library):
    reports, _ = run(library, "--device", DEVICE)
    assert reports[0]["device"] == f"{DEVICE}:0"
    assert reports[0]["losses"] == pytest.approx(on_cpu(library), rel=1e-5)


@pytest.mark.parametrize("library", ["accelerate", "trainer", "peft", "trl", "lightning", "fabric"])
def test_two_ranks(library):
    reports, errors = run(library, "--device", DEVICE, start=TORCHRUN)
    assert {rank: report["device"] for rank, report in reports.items()} == {0: f"{DEVICE}:0", 1: f"{DEVICE}:1"}
    assert [report["group"] for report in reports.values()] == [2, 2] and "UserWarning: The driver" not in errors
    assert reports[0]["losses"] == pytest.approx(on_cpu(library, start=TORCHRUN), rel=1e-5)


def test_two_ranks_by_accelerate_launch():
    reports, _ = run("accelerate", "--device", DEVICE, start=LAUNCH)
    assert reports[0]["losses"] == pytest.approx(on_cpu("accelerate", start=TORCHRUN), rel=1e-5)


@pytest.mark.parametrize("library", ["accelerate", "trainer", "lightning"])
def test_sharded_by_fsdp2(library):
    reports, _ = run(library, "--device", DEVICE, "--shard", start=TORCHRUN)
    assert reports[0]["device"] == f"{DEVICE}:0"
    assert reports[0]["losses"] == pytest.approx(on_cpu(library, start=TORCHRUN), rel=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("library", ["accelerate", "lightning", "fabric", "trainer"])
def test_mixed_precision_is_autocast(library, precision):
    reports, _ = run(library, "--device", DEVICE, "--precision", precision)
    assert reports[0]["dtype"] == {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[precision]
    if library == "trainer":  # its model is not that of the plain loop
        expected, tolerance = on_cpu("trainer"), 2e-3
    else:
        expected, tolerance = on_cpu("torch", "--precision", precision), 5e-3
    assert reports[0]["losses"] == pytest.approx(expected[: len(reports[0]["losses"])], rel=tolerance)


@pytest.mark.parametrize("library", ["accelerate", "trainer", "lightning"])
def test_without_use_two_ranks_are_warned(library):
    _, errors = run(library, "--device", DEVICE, "--no-use", start=TORCHRUN)
    module = "lightning" if library == "lightning" else "huggingface"
    assert errors.count("trains on the CPU") == 2 and f"{module}.use()" in errors


def test_ranks_on_the_device_without_exchange_are_warned():
    """With Accelerate's variable each rank trains alone, in a group that Accelerate has made and does not use."""
    variables = {"ACCELERATE_TORCH_DEVICE": f"{DEVICE}:0"}
    _, errors = run("trainer", "--device", DEVICE, "--no-use", start=TORCHRUN, env=variables)
    assert errors.count("without having exchanged anything") == 2
