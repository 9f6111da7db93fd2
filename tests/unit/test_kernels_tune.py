# SPDX-License-Identifier: BSD-3-Clause
"""The refusals of `outboard kernels tune`. tests/kernels/test_tuning.py tests its work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from torch_outboard.cli import main
from torch_outboard.kernels.disk.store import VARIABLE
from torch_outboard.kernels.tune.schedules import PARAMETERS, default_of, family_of, is_schedule, tuned_name


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["kernels", "tune", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dtypes", "float64"), "unknown name 'float64'; choose from float32, bfloat16, float16"),
        (("--only", "("), "'(' is not a regular expression"),
        (("--size", "3"), "3 is not in the range x>=16"),
        ((), "Missing option '--driver'"),
    ],
)
def test_bad_arguments(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    answer = run(*(("--driver", "sim") if arguments else ()), *arguments)
    assert answer.exit_code == 2 and message in answer.output


def test_without_a_folder_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    answer = run("--driver", "sim")
    assert answer.exit_code == 1 and f"tuned schedules cannot be stored: {VARIABLE} is empty" in answer.output


def test_a_driver_without_kernels_is_refused(run_python: Any, tmp_path: Path) -> None:
    code = "import sys; from torch_outboard.cli import main; main(sys.argv[1:])"
    words = ("kernels", "tune", "--driver", "unit.toys:Toy")
    answer = run_python(code, *words, env={VARIABLE: str(tmp_path)}, status=1)
    assert "has no kernel generator: set `kernel_generator`" in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_schedules_are_of_those_to_choose_from() -> None:
    for name, parameters in PARAMETERS.items():
        default = default_of(f"{name} float32")
        assert is_schedule(f"{name} float32", default) and default.keys() == parameters.keys()
        for key in parameters:
            assert not is_schedule(name, {**default, key: 7}) and not is_schedule(name, {**default, key: True})
        assert not is_schedule(name, {**default, "more": 1}) and not is_schedule(name, [])
    assert family_of("aten::mm") == family_of("aten::baddbmm") == "product"
    assert family_of("aten::convolution_backward") == "convolution_gradients"
    assert tuned_name("product", "tiles", "torch.float32") == "product.tiles float32"
