# SPDX-License-Identifier: BSD-3-Clause
"""Drivers that `outboard new` copies and that generate kernels in their own language: all tests."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from stress.suites import TESTS, run_python, run_suite

DRIVER = "examples.own_kernels:OwnKernelsDriver"
RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:])"


def test_the_driver_tests() -> None:
    run_suite(str(TESTS / "driver"), f"--driver={DRIVER}")


@pytest.fixture(scope="module", params=["c", "python"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of an installed project of the template `device`."""
    from unit.test_new import make_and_install

    folder = tmp_path_factory.mktemp(request.param)
    make_and_install(folder / "project", folder / "site", "--template", "device", "--language", request.param)
    path = os.pathsep.join([str(folder / "site"), *filter(None, sys.path), str(TESTS.parent)])
    return {"PYTHONPATH": path}


def test_a_device_with_kernels_skips_little(installed: dict[str, str]) -> None:
    answer = run_python("-c", RUN, "test", "made_up", "-q", "-n", "2", **installed)
    assert answer.returncode == 0, answer.stdout[-20_000:] + answer.stderr[-5_000:]
    match = re.search(r"^Passed: (\d+) tests\. Failed: 0\. Skipped: (\d+), for:$", answer.stdout, re.MULTILINE)
    assert match and int(match[1]) > 1300 and int(match[2]) <= 20, answer.stdout[-2_000:]


@pytest.mark.parametrize("options", [[], ["--compile"]], ids=["eager", "compiled"])
def test_the_digits_are_learned(installed: dict[str, str], options: list[str], tmp_path: Path) -> None:
    example = str(TESTS.parent / "examples" / "digits.py")
    variables = {"OUTBOARD_FALLBACK": "error", "OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path / "kernels"), **installed}
    answer = run_python(example, "--device", "made_up", *options, **variables)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_device_in_c_below_torch(installed: dict[str, str]) -> None:
    answer = run_python("-c", RUN, "test", "made_up", "--native", **installed)
    if "has no library" in answer.stderr:
        return  # the one in Python
    assert answer.returncode == 0 and "9 of 9 tests passed" in answer.stdout, answer.stdout + answer.stderr


@pytest.mark.parametrize("name", ["convolutions", "ordering", "products", "random", "reductions", "tuning"])
def test_kernels(name: str) -> None:
    # A graph that draws needs pinned memory, which the driver hasn't.
    run_suite(str(TESTS / "kernels" / f"test_{name}.py"), f"--driver={DRIVER}", "-k", "not each_replay")


PARTS = ("^[a-f_A-Z]", "^[g-m]", "^(n[^n]|[o-q])", "^nn.*[.][a-h][^.]*$", "^nn.*[.][i-z][^.]*$", "^[r-z]")


@pytest.mark.parametrize("only", PARTS)
def test_no_value_is_wrong(only: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ("--driver", DRIVER, "--no-figures", "--dtypes", "float32", "--only", only, "--json", str(report))
    answer = run_python("-c", RUN, "kernels", "check", *options)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert len(json.loads(report.read_text())["entries"]) > 40
