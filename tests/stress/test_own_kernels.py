# SPDX-License-Identifier: BSD-3-Clause
"""The drivers that `outboard new` copies whose kernels are generated in a language of their own: all tests."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from stress.suites import TESTS, run_python, run_suite

DRIVER = "examples.own_kernels:OwnKernelsDriver"
DEVICE = "examples.own_device:OwnDeviceDriver"
RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:])"


def test_the_driver_tests() -> None:
    run_suite(str(TESTS / "driver"), f"--driver={DRIVER}")


def test_a_device_with_kernels_skips_little() -> None:
    answer = run_python("-c", RUN, "test", DEVICE, "-q", "-n", "2")
    assert answer.returncode == 0, answer.stdout[-20_000:] + answer.stderr[-5_000:]
    found = re.search(r"^Passed: (\d+) tests\. Failed: 0\. Skipped: (\d+), for:$", answer.stdout, re.MULTILINE)
    assert found and int(found[1]) > 1300 and int(found[2]) <= 20, answer.stdout[-2_000:]


@pytest.mark.parametrize("options", [[], ["--compile"]], ids=["eager", "compiled"])
def test_the_digits_are_learned(options: list[str]) -> None:
    path = os.pathsep.join([*filter(None, sys.path), str(TESTS.parent)])
    variables = {"OUTBOARD_FALLBACK": "error", "PYTHONPATH": path}
    answer = run_python(str(TESTS.parent / "examples" / "digits.py"), "--device", DEVICE, *options, **variables)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("name", ["convolutions", "orders", "products", "random", "reductions", "tuning"])
def test_kernels(name: str) -> None:
    # A graph that draws needs pinned memory, which the driver hasn't.
    run_suite(str(TESTS / "kernels" / f"test_{name}.py"), f"--driver={DRIVER}", "-k", "not each_replay")


PARTS = ("^[a-f_A-Z]", "^[g-m]", "^(n[^n]|[o-q])", "^nn.*[.][a-h][^.]*$", "^nn.*[.][i-z][^.]*$", "^[r-z]")


@pytest.mark.parametrize("only", PARTS)
def test_no_value_is_wrong(only: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    given = ("--driver", DRIVER, "--no-figures", "--dtypes", "float32", "--only", only, "--json", str(report))
    answer = run_python("-c", RUN, "kernels", "check", *given)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert len(json.loads(report.read_text())["entries"]) > 40
