# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels`: the stored kernels on disk, in a reader's words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from torch_outboard.cli import main
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.kernels.disk import packs
from torch_outboard.kernels.disk.files import Answer
from torch_outboard.kernels.disk.store import VARIABLE, Store, default_folder
from torch_outboard.kernels.packing.making import write_pack
from torch_outboard.testing.plugin import RunPython

KIND = {"machine": "gpu", "generator": "package.Generator"}
MATRIX = ["tensor", "torch.float32", 2, "own"]
SIZES = [[[2, 3], [3, 1]]]
PLAN = Answer("plan 1\nreturn b0\n", [KernelRecord("aten::add/0", "opencl_c", b"kernel {\n}\x1b[2J", "", "e", "r", ())])


def key(operator: str, *arguments: Any) -> str:
    return json.dumps({"operator": operator, "arguments": arguments, "kind": KIND})


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["kernels", *arguments])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv(packs.VARIABLE, "")
    store = Store(tmp_path)
    number = ["tensor", "torch.int64", 0, "cpu"]
    store.save(key("aten::add.Tensor", MATRIX, number, ["read", "float"]), [*SIZES, [[], []]], PLAN)
    store.save(key("aten::sum.dim_IntList", MATRIX, ["list", [0, -1]], True, ["dtype", "torch.float64"]), SIZES, PLAN)
    store.save(
        key("aten::leaky_relu", MATRIX, ["float", (0.25).hex()]),
        SIZES,
        Answer("", [], "it is\x1b[1m refused", True),
    )
    return tmp_path


def test_plans_are_listed(folder: Path) -> None:
    output = run("list").output.splitlines()
    assert output[:3] == [
        "aten::add.Tensor(float32[2, 3], int64[] on the CPU, any float): 1 kernel",
        "aten::leaky_relu(float32[2, 3], 0.25): none, it is\\x1b[1m refused",
        "aten::sum.dim_IntList(float32[2, 3], [0, -1], True, torch.float64): 1 kernel",
    ]
    assert output[3].startswith("3 plans, ") and output[3].endswith(f" KiB, in {folder}")
    assert output[4].startswith(
        "built today: 3 plans, 0 programs; full to 0% with plans and to 0% with programs (at most "
    )
    assert run("list", "sum").output.splitlines()[0].startswith("aten::sum.dim_IntList(")
    assert run("list", "nothing").output.startswith("0 plans, ")


def test_a_reason_is_listed_with_what_to_do(folder: Path) -> None:
    refusal = "no template multiplies matrices of torch.float8_e4m3fn [products]"
    Store(folder).save(key("aten::mm", MATRIX, MATRIX), [*SIZES, *SIZES], Answer("", [], refusal, True))
    (line,) = [line for line in run("list").output.splitlines() if line.startswith("aten::mm(")]
    assert f"none, {refusal}. Convert to float32, " in line


def test_a_folder_that_is_no_text_is_used_and_shown(tmp_path: Path, monkeypatch: Any) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b"))
    monkeypatch.setenv(VARIABLE, str(folder))
    monkeypatch.setenv(packs.VARIABLE, "")
    Store(default_folder()).save(key("aten::add.Tensor", MATRIX), SIZES, PLAN)
    listed = run("list")
    assert listed.exit_code == 0 and listed.output.splitlines()[1].endswith(f" KiB, in {tmp_path}/\\xff\\x1b")
    assert f"in {tmp_path}/\\xff\\x1b" in run("clear").output and not list(folder.glob("*/??/*"))


def test_sources_are_shown_and_escaped(folder: Path) -> None:
    output = run("list", "add.Tensor", "--source").output
    assert "  for machines 'gpu', by package.Generator\n    plan 1\n    return b0\n" in output
    assert "  aten::add/0, in opencl_c:\n    kernel {\n    }\\x1b[2J\n" in output
    assert "\x1b" not in output


def test_damage_is_listed(folder: Path) -> None:
    damaged = next(folder.glob("*/*/*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert f"{damaged} is damaged\n" in run("list").output


def test_other_versions_are_counted_and_cleared(folder: Path) -> None:
    other_version, theirs = folder / ("0" * 16), folder / "notes"
    other_version.mkdir()
    theirs.mkdir()
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / ("0" * 64)).write_bytes(bytes(3000))
    assert "1 compiled programs, 3 KiB" in run("list").output
    assert ", beside those of 1 other versions" in run("list").output
    contents = f"the plans of 2 versions, and 1 compiled programs, in {folder}"
    assert (
        run("clear", "--dry-run").output
        == f"would remove {contents}\nleft {theirs}, which is neither a plan nor a program\n"
    )
    assert other_version.exists() and any(programs.iterdir())
    assert run("clear").output == f"removing {contents}\nleft {theirs}, which is neither a plan nor a program\n"
    assert sorted(folder.iterdir()) == [theirs, programs] and not any(programs.iterdir())
    assert run("list").output.startswith("0 plans, 0 KiB")


def test_only_what_is_ours_is_cleared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / ("0" * 64)).write_text("a program of another folder")
    (version,) = (path for path in folder.iterdir() if len(path.name) == 16)
    inner = next(path for path in version.iterdir() if path.is_dir())
    (folder / "programs").symlink_to(elsewhere)
    (folder / ("1" * 16)).symlink_to(elsewhere)
    (folder / ("2" * 16)).write_text("a file")
    (version / "00").symlink_to(elsewhere)
    (version / "notes").write_text("")
    (inner / "notes").write_text("")
    (inner / ("0" * 62 + ".refusal")).symlink_to(elsewhere / ("0" * 64))
    (inner / ("1" * 62 + ".refusal")).mkdir()
    output = run("clear").output.splitlines()
    kept_paths = [folder / ("1" * 16), folder / ("2" * 16), folder / "programs", version / "00", version / "notes"]
    kept_paths += [inner / name for name in ("notes", "0" * 62 + ".refusal", "1" * 62 + ".refusal")]
    assert sorted(output[1:]) == sorted(f"left {path}, which is neither a plan nor a program" for path in kept_paths)
    assert all(path.is_symlink() or path.exists() for path in kept_paths)
    assert [path.name for path in elsewhere.iterdir()] == ["0" * 64]
    assert sorted(path.name for path in inner.iterdir()) == ["0" * 62 + ".refusal", "1" * 62 + ".refusal", "notes"]


def test_without_a_folder_it_says_why(monkeypatch: Any) -> None:
    monkeypatch.setenv(VARIABLE, "")
    result = run("list")
    assert result.exit_code == 1 and f"plans are not stored: {VARIABLE} is empty" in result.output


def test_packs_are_listed(folder: Path, monkeypatch: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    pack, missing = tmp_path_factory.mktemp("packs") / "pack", folder / "nowhere"
    write_pack(folder, pack, {"one": KIND, "two": KIND})
    monkeypatch.setenv(packs.VARIABLE, f"{pack}:{missing}")
    of_pack = f"in {pack} for package.Generator on machines 'gpu' of one, two, 3 plans, 0 programs"
    own, first, second = run("list").output.splitlines()[-3:]
    assert first == f"a pack of {packs.VARIABLE}, {of_pack}"
    assert second == f"a pack of {packs.VARIABLE}, in {missing}: not used, it can't be read, {missing} does not exist"
    listed = run("list", "relu", "--pack", str(pack)).output.splitlines()
    assert listed[0] == "aten::leaky_relu(float32[2, 3], 0.25): none, it is\\x1b[1m refused"
    assert listed[1].startswith("1 plans, ") and listed[1].endswith(f" KiB, {of_pack}")
    monkeypatch.setattr(packs, "versions", lambda: {"torch": "1.0", "code": "old"})
    assert f"{of_pack}: not used, it was made for another torch and another code\n" in run("list").output
    pack.write_bytes(pack.read_bytes()[:-1])
    assert f"{pack} is damaged (" in run("list", "--pack", str(pack)).output


def test_a_pack_has_a_file_of_its_own(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("words")
    for path in (thesis, tmp_path):
        result = run("pack", str(path), "--driver", "opencl")
        assert result.exit_code == 1 and f"{path} exists and is not a pack: choose another file" in result.output
    assert thesis.read_text() == "words"


def test_a_pack_without_a_device_says_what_is_missing(tmp_path: Path, monkeypatch: Any) -> None:
    before = os.environ.get("OUTBOARD_PROVIDERS")
    monkeypatch.delenv("TORCHINDUCTOR_VEC_ISA_OK", raising=False)  # tests may run with it
    result = run("pack", str(tmp_path / "pack"), "--driver", "opencl", "--arch", "one")
    assert result.exit_code == 1 and "the driver 'ocl' cannot build programs without a device" in result.output
    assert os.environ.get("OUTBOARD_PROVIDERS") == before
    result = run("pack", str(tmp_path / "pack"), "--driver", "tests.simt_drivers:AheadOfTimeGpu", "--arch", "one,tow")
    assert (
        result.exit_code == 1
        and "does not support the architecture 'tow', only one, two. Did you mean" in result.output
    )
    assert not any(tmp_path.iterdir())


def test_a_pack_is_for_nobody_s_settings(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    result = run("pack", str(tmp_path / "pack"), "--driver", "opencl")
    assert result.exit_code == 1 and "TORCHINDUCTOR_FREEZING=1" in result.output


def test_dtypes_of_a_pack_are_known_ones(tmp_path: Path) -> None:
    result = run("pack", str(tmp_path / "pack"), "--driver", "opencl", "--dtypes", "float32,complex64")
    assert result.exit_code == 2 and "unknown name 'complex64'; choose from float32, bfloat16" in result.output


def test_a_script_warms_the_cache(run_compiler: RunPython, tmp_path: Path) -> None:
    script = tmp_path / "step.py"
    script.write_text(
        "import sys, torch\nx = torch.ones(3, device='own_kernels')\nprint((x + 1).sum().item(), *sys.argv[1:])\n"
    )
    code = f"""
from torch_outboard.cli import main
main(["kernels", "warm", "--driver", "examples.own_kernels:OwnKernelsDriver", {str(script)!r}, "--flag"])
"""
    env = {VARIABLE: str(tmp_path / "plans"), "OUTBOARD_FALLBACK": "error"}
    first, second = (run_compiler(code, env=env) for _ in range(2))
    assert first.stdout == second.stdout == "6.0 --flag\n"
    assert (
        "2 plans and 0 programs were built in" in first.stderr and " s and 0 plans were stored before" in first.stderr
    )
    assert (
        "0 plans and 0 programs were built in" in second.stderr and " s and 2 plans were stored before" in second.stderr
    )
    nowhere = run_compiler(code, env={**env, VARIABLE: ""}, status=1)
    assert f"plans are not stored: {VARIABLE} is empty" in nowhere.stderr
