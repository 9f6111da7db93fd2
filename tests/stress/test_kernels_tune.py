# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels tune` as a user runs it, and every schedule to choose from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stress.suites import TESTS, run_suite
from torch_outboard.kernels.disk.store import VARIABLE

RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:])"
DRIVERS = ["tests.simt_drivers:DiscreteOpenCL", "tests.simt_drivers:Groups"]
PRODUCT = """
import torch, torch_outboard
torch_outboard.attach("opencl", host_access=False)
x = torch.randn(67, 130)
torch.testing.assert_close((x.to("ocl") @ x.t().to("ocl")).cpu(), x @ x.t(), rtol=1e-4, atol=1e-4)
"""


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_schedule(driver: str) -> None:
    run_suite(str(TESTS / "kernels" / "test_tuning.py"), f"--driver={driver}", OUTBOARD_TEST_SAMPLES="all")


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_device_is_tuned(driver: str, run_python: Any, tmp_path: Path) -> None:
    cache, report = tmp_path / "cache", tmp_path / "report.json"
    env = {VARIABLE: str(cache), "COLUMNS": "80", "OUTBOARD_FALLBACK": "error"}
    options = ("--driver", driver, "--size", "64", "--rounds", "1", "--dtypes", "float32", "--json", str(report))
    answer = run_python(RUN, "kernels", "tune", *options, env=env)
    written = json.loads(report.read_text())
    (table,) = cache.glob("schedules/*.json")
    assert written["path"] == str(table) and len(written["schedules"]) == 5
    assert all(row["refused"] == {} and 0 < row["seconds"] <= row["before"] for row in written["schedules"])
    assert max(map(len, answer.stdout.splitlines()[:-1])) <= 80 and "5 schedules are stored in " in answer.stdout
    run_python(PRODUCT, env=env)
    listed = run_python(RUN, "kernels", "list", env=env).stdout
    assert f"in {table}: 5 of them" in listed
    assert str(table) in "".join(run_python(RUN, "info", "--json", "--driver", driver, env=env).stdout.split())
    # What isn't measured stays.
    run_python(RUN, "kernels", "tune", *options, "--only", "product", env=env)
    assert "5 of them" in run_python(RUN, "kernels", "list", env=env).stdout
    assert "removed" in run_python(RUN, "kernels", "tune", "--driver", driver, "--reset", env=env).stdout
    assert "there were no" in run_python(RUN, "kernels", "tune", "--driver", driver, "--reset", env=env).stdout
    assert not table.exists()
