# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels check`: its findings with good and bad kernels, and its messages if it cannot begin."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from click.testing import CliRunner

from torch_outboard.cli import kernels_check, main
from torch_outboard.kernels import generated_only
from unit.bad_kernels import BadGenerator

RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:])"


def command(*arguments: str) -> tuple[str, ...]:
    return ("kernels", "check", *arguments)


class EntryCheck(NamedTuple):
    entry: str
    dtype: str
    is_gradient: bool


def found(entry: str, state: str, reason: str = "") -> SimpleNamespace:
    check = EntryCheck(entry, "float32", is_gradient=False)
    is_bad = state in ("wrong", "failed", "crash", "hang")
    return SimpleNamespace(check=check, state=state, is_bad=is_bad, gist=reason, as_row=lambda: {"entry": entry})


@pytest.mark.parametrize(("state", "status"), [("right", 0), ("ran", 0), ("wrong", 1), ("failed", 1), ("crash", 1)])
def test_the_status_shows_whether_all_is_right(
    state: str, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The results that `make stress` sees on real drivers, without a driver."""
    all_found = [found("add", "right"), found("exp", state, "3 of 6\x1b[2J"), found("svd", "refused", "no lowering")]
    checks = [entry.check for entry in all_found]
    database = SimpleNamespace(
        entry_checks=lambda *arguments: checks, check=lambda *arguments: iter(reversed(all_found))
    )
    monkeypatch.setitem(sys.modules, "torch_outboard.testing.database.check", database)
    monkeypatch.setattr(generated_only, "attach_generated_only", lambda *arguments: torch.device("cpu"))
    monkeypatch.setattr(kernels_check, "_about", lambda device: {})
    report = tmp_path / "report.json"
    words = command("--driver", "any", "--dtypes", "float32", "--no-figures", "--json", str(report))
    answer = CliRunner(env={"COLUMNS": "80"}).invoke(main, words)
    assert answer.exit_code == status, (answer.output, answer.exception)
    assert [entry["entry"] for entry in json.loads(report.read_text())["entries"]] == ["add", "exp", "svd"]
    assert max(map(len, answer.output.splitlines())) <= 80
    assert "    1 no lowering\n" in answer.output
    assert (f"{state}: exp (float32): 3 of 6\\x1b[2J\n" in answer.output) == (status == 1)


def test_what_can_t_be_checked(run_python: Any) -> None:
    answer = run_python(
        """
from click.testing import CliRunner
from torch_outboard.cli import kernels_check, main
from torch_outboard.kernels import generated_only
for driver in ("nothing", "unit.nowhere:Driver", "unit.toys:Toy"):
    found = CliRunner().invoke(main, ["kernels", "check", "--driver", driver])
    assert found.exit_code == 1
    print(found.output)
"""
    ).stdout
    assert "no driver is called 'nothing'" in answer and "unit.nowhere" in answer
    assert "has no kernel generator: set `kernel_generator` in its Driver class" in answer
    empty = run_python(RUN, *command("--driver", "unit.bad_kernels:Empty"), status=1)
    assert "found no device here: the driver reports none" in empty.stderr


@pytest.mark.parametrize("name", ["cosh", "exp", "sinh"])
def test_the_kernels_of_the_stress_tests_are_bad(name: str) -> None:
    dialect = BadGenerator.dialect
    assert dialect.function(name, torch.float32) == dialect.functions[name]


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = CliRunner().invoke(main, command("--driver", "sim"))
    assert answer.exit_code == 1
    assert "checks of the operator database need numpy and expecttest: " in answer.output
    assert "pip install 'torch-outboard[test]'" in answer.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dtypes", "float32,complex32"), "unknown name 'complex32'; choose from all, float32, "),
        (("--only", "("), "'(' is not a regular expression"),
        (("--option", "devices"), "'devices' has no '='"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], message: str) -> None:
    answer = CliRunner(env={"COLUMNS": "200"}).invoke(main, command("--driver", "sim", *arguments))
    assert answer.exit_code == 2 and message in answer.output
