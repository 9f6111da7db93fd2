# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels check` over the whole operator database, with gradients, and past processes that die."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from torch_outboard.testing.children import NoAnswer, run_in_children

RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:])"


def check(run_python: Any, report: Path, *arguments: str, status: int) -> list[dict[str, Any]]:
    options = ("--no-figures", "--json", str(report), *arguments)
    run_python(RUN, "kernels", "check", *options, status=status)
    return json.loads(report.read_text())["entries"]


@pytest.mark.parametrize("driver", ["DiscreteOpenCL", "Groups"])
@pytest.mark.parametrize("more", [(), ("--gradients",)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_nothing_is_wrong(driver: str, more: tuple[str, ...], dtype: str, run_python: Any, tmp_path: Path) -> None:
    # By the first letter of an entry's name, so that no process is
    # longer than one of a test may be.
    rows = []
    functional = [f"nn.functional.{letters}" for letters in ("[a-c]", "[d-l]", "[^a-l]")]
    for letters in ("[a-e_A-D]", "[f-l]", "[mopq]", *functional, "n[^n]", "[r-t]", "[u-zE-Z]"):
        arguments = ("--driver", f"tests.simt_drivers:{driver}", "--dtypes", dtype, "--only", f"^{letters}")
        rows += check(run_python, tmp_path / "report.json", *arguments, *more, status=0)
    assert len(rows) > 400 and not [entry for entry in rows if entry["state"] in ("wrong", "failed", "crash", "hang")]


def test_what_is_found(run_python: Any, tmp_path: Path) -> None:
    """Kernels that are right, wrong, do not compile or are missing. Figures have only bars: this machine is busy."""
    report = tmp_path / "report.json"
    entries = "^(exp|neg|sinh|linalg.ldl_factor_ex)$"
    options = ("--driver", "unit.bad_kernels:Bad", "--only", entries, "--dtypes", "float32")
    more = ("--side", "64", "--json", str(report))
    answer = run_python(RUN, "kernels", "check", *options, *more, status=1, env={"COLUMNS": "80"})
    if "found no device here" in answer.stderr:
        pytest.skip("capability: an OpenCL device")
    written = json.loads(report.read_text())
    states = {row["entry"]: (row["state"], row["reason"]) for row in written["entries"]}
    assert {entry: state for entry, (state, _) in states.items()} == {
        "exp": "wrong",
        "neg": "right",
        "sinh": "failed",
        "linalg.ldl_factor_ex": "refused",
    }
    assert "elements differ by up to" in states["exp"][1] and "its plan can't be used" in states["sinh"][1]
    assert written["failure"] == ""
    units = [(figure["unit"], figure["bar"]) for figure in written["figures"]]
    shares = [bar for unit, bar in units if unit == ""]
    assert units == [("GB/s", None), *(("", bar) for bar in shares), ("µs", None), ("µs", 1.2), ("ms", 150)]
    # Lower than those of large matrices, by the time of a launch.
    assert len(shares) == 2 and 0 < shares[0] < 0.85 and 0 < shares[1] < 0.8
    assert all(figure["value"] > 0 for figure in written["figures"] if figure["bar"] != 1.2)
    # Sentences about an operator are wrapped by the terminal.
    tables = [line for line in answer.stdout.splitlines() if line.startswith("  ") and "aten::" not in line]
    assert len(tables) > 10 and max(map(len, tables)) <= 80
    assert "  float32         4       1          0            1       1        1" in answer.stdout
    assert "wrong: exp (float32): " in answer.stdout and "failed: sinh (float32): " in answer.stdout
    assert "1 aten::linalg_ldl_factor_ex: Inductor has no lowering for this operator" in answer.stdout
    assert (
        all(f"≥ {share:.0%}" in answer.stdout for share in shares)
        and "≤ 1.2 µs" in answer.stdout
        and "≤ 150 ms" in answer.stdout
    )


def test_an_entry_that_ends_its_process_is_reported(run_python: Any, tmp_path: Path) -> None:
    arguments = ("--driver", "unit.bad_kernels:Bad", "--only", "^(cosh|neg)$", "--dtypes", "float32")
    entries = check(run_python, tmp_path / "report.json", *arguments, status=1)
    assert {entry["entry"]: entry["state"] for entry in entries} == {"cosh": "crash", "neg": "right"}
    assert "ended with 9" in entries[0]["reason"]


def _work(pipe: Any) -> None:
    while (item := pipe.recv()) is not None:
        if item == "dies":
            os._exit(9)
        if item == "hangs":
            signal.pause()
        pipe.send((item, f"{item} in {os.getpid()}", item != "is the last"))


def test_children_take_one_item_along() -> None:
    items = ["a", "dies", "is the last", "b"]
    results = dict(run_in_children(_work, (), items, jobs=1))
    assert list(results) == items
    assert results["dies"] == NoAnswer("crash", "the process ended with 9")
    assert len({results[name].rpartition(" ")[2] for name in ("a", "is the last", "b")}) == 3
    assert dict(run_in_children(_work, (), ["hangs"], jobs=1, hang_seconds=0.1)) == {
        "hangs": NoAnswer("hang", "no answer in 0.1 s")
    }
