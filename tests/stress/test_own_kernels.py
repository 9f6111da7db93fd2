# SPDX-License-Identifier: BSD-3-Clause
"""The driver that `outboard new --kernels` copies, whose kernels are generated in a language of its own: all tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stress.suites import TESTS, run_suite

DRIVER = "examples.own_kernels:OwnKernelsDriver"
RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:])"


def test_the_driver_tests() -> None:
    run_suite(str(TESTS / "driver"), f"--driver={DRIVER}")


@pytest.mark.parametrize("name", ["convolutions", "orders", "products", "random", "reductions", "tuning"])
def test_kernels(name: str) -> None:
    # A graph that draws needs pinned memory, which the driver hasn't.
    run_suite(str(TESTS / "kernels" / f"test_{name}.py"), f"--driver={DRIVER}", "-k", "not each_replay")


PARTS = ("^[a-f_A-Z]", "^[g-m]", "^(n[^n]|[o-q])", "^nn.*[.][a-h][^.]*$", "^nn.*[.][i-z][^.]*$", "^[r-z]")


@pytest.mark.parametrize("only", PARTS)
def test_no_value_is_wrong(only: str, run_python: Any, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    given = ("--driver", DRIVER, "--no-figures", "--dtypes", "float32", "--only", only, "--json", str(report))
    run_python(RUN, "kernels", "check", *given)
    assert len(json.loads(report.read_text())["entries"]) > 40
