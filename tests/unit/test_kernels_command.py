# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels`: what lies on disk, in a reader's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from torch_outboard.cli import main
from torch_outboard.kernels.store import VARIABLE, Answer, Store

DEVICE = {"device": ["vendor", "a chip", "arch", "gpu"], "generator": "package.Generator"}
MATRIX = ["tensor", "torch.float32", [2, 3], [3, 1], "ocl"]
PLAN: Answer = (
    "plan 1\nreturn b0\n",
    [("aten::add/0", "opencl_c", b"kernel {\n}\x1b[2J", "", "e", "r", [], [])],
    "",
    False,
)


def key(operator: str, *arguments: Any) -> str:
    return json.dumps({"operator": operator, "arguments": arguments, "device": DEVICE})


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["kernels", *arguments])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    store = Store(tmp_path)
    store.save(key("aten::add.Tensor", MATRIX, ["tensor", "torch.int64", [], [], "cpu"], ["read", "float"]), PLAN)
    store.save(key("aten::sum.dim_IntList", MATRIX, ["list", [0, -1]], True, ["dtype", "torch.float64"]), PLAN)
    store.save(key("aten::leaky_relu", MATRIX, ["float", (0.25).hex()]), ("", [], "it is\x1b[1m refused", True))
    return tmp_path


def test_plans_are_listed(folder: Path) -> None:
    output = run("list").output.splitlines()
    assert output[:3] == [
        "aten::add.Tensor(float32[2, 3], int64[] on the CPU, any float): 1 kernel",
        "aten::leaky_relu(float32[2, 3], 0.25): none, it is\\x1b[1m refused",
        "aten::sum.dim_IntList(float32[2, 3], [0, -1], True, torch.float64): 1 kernel",
    ]
    assert output[3].startswith("3 plans, ") and output[3].endswith(f" KiB, in {folder}")
    assert run("list", "sum").output.splitlines()[0].startswith("aten::sum.dim_IntList(")
    assert run("list", "nothing").output.startswith("0 plans, ")


def test_sources_are_shown_and_escaped(folder: Path) -> None:
    output = run("list", "add.Tensor", "--source").output
    assert "  for a chip, by package.Generator\n    plan 1\n    return b0\n" in output
    assert "  aten::add/0, in opencl_c:\n    kernel {\n    }\\x1b[2J\n" in output
    assert "\x1b" not in output


def test_damage_is_listed(folder: Path) -> None:
    damaged = next(folder.glob("*/*/*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert f"{damaged} is damaged\n" in run("list").output


def test_other_versions_are_counted_and_cleared(folder: Path) -> None:
    other, theirs = folder / ("0" * 16), folder / "notes"
    other.mkdir()
    theirs.mkdir()
    assert "; 1 other versions have left theirs" in run("list").output
    assert run("clear").output == "removed the plans of 2 versions\n"
    assert list(folder.iterdir()) == [theirs]
    assert run("list").output.startswith("0 plans, 0 KiB")


def test_without_a_folder_it_says_why(monkeypatch: Any) -> None:
    monkeypatch.setenv(VARIABLE, "")
    result = run("list")
    assert result.exit_code == 1 and f"plans are kept nowhere: {VARIABLE} is empty" in result.output
