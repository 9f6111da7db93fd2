# SPDX-License-Identifier: BSD-3-Clause
"""A refused shape refuses no other shape of its class, in this process and in the next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torch_outboard.testing.plugin import RunPython

# For each: a function, a shape that is refused, and three that are not.
ENTRIES = {
    "prime lengths": ("torch.fft.fft", (2, 4099), [(2, 6), (2, 10), (3, 7)]),
    "large matrices": ("torch.linalg.eigvalsh", (300, 300), [(3, 3), (5, 5), (8, 8)]),
    "singular values": ("torch.linalg.svdvals", (300, 300), [(3, 3), (5, 5), (8, 8)]),
    "large orthogonal factors": ("torch.linalg.qr", (300, 300), [(3, 4), (5, 3), (8, 8)]),
}

PROGRAM = """
import json, sys
import torch, torch_outboard
torch_outboard.attach(sys.argv[1])
for function, shape in json.loads(sys.argv[2]):
    try:
        eval(function)(torch.eye(*shape).to(torch.accelerator.current_accelerator()))
        torch.accelerator.synchronize()
        print("runs")
    except torch_outboard.NotSupportedError as error:
        print("refused", str(error).replace("\\n", " "))
"""


@pytest.mark.parametrize("is_shared", [True, False], ids=["one process", "two processes"])
def test_a_refused_shape_refuses_no_other(
    is_shared: bool, run_python: RunPython, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    env = {"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path), "OUTBOARD_FALLBACK": "error", "OMP_NUM_THREADS": "1"}
    refused = [(function, shape) for function, shape, _ in ENTRIES.values()]
    others = [(function, shape) for function, _, shapes in ENTRIES.values() for shape in shapes]
    runs = [refused + others] if is_shared else [refused, others]
    driver = request.config.getoption("--driver")
    lines = [
        line for calls in runs for line in run_python(PROGRAM, driver, json.dumps(calls), env=env).stdout.splitlines()
    ]
    for line in lines[: len(refused)]:
        assert line.startswith("refused") and "None was generated: " in line and "]. " in line, line
    assert lines[len(refused) :] == ["runs"] * len(others), lines
