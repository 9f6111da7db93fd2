# SPDX-License-Identifier: BSD-3-Clause
"""Generated tables equal what their scripts would write today. tests/stress checks the table of overlaps.

The table of meta functions is written in each build.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def check_table(script: str) -> None:
    answer = subprocess.run([sys.executable, str(SCRIPTS / script), "--check"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def write_meta_kernels(headers: Path, file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", str(SCRIPTS.parent / "cmake" / "meta_kernels.py"), str(headers), str(file)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_table_of_meta_kernels(tmp_path: Path) -> None:
    file = tmp_path / "built" / "meta_kernels.inc"
    headers = Path(torch.__file__).parent / "include" / "ATen" / "ops"
    assert write_meta_kernels(headers, file).returncode == 0
    lines = file.read_text(encoding="utf-8").splitlines()
    assert {"OB_META(add_Tensor, add)", "OB_META(add__Tensor, add_)", "OB_META(add_out, add_outf)"} < set(lines)
    assert sum(line.startswith("OB_META(") for line in lines) > 600
    os.utime(file, ns=(1, 1))
    assert write_meta_kernels(headers, file).returncode == 0
    assert file.stat().st_mtime_ns == 1, "nothing is compiled again for the same headers"
    answer = write_meta_kernels(tmp_path, tmp_path / "none.inc")
    assert answer.returncode == 1 and "has no headers of structured operators" in answer.stderr
    assert not (tmp_path / "none.inc").exists()


@pytest.fixture(scope="module")
def prelude_tables() -> Any:
    path = str(SCRIPTS / "prelude_tables")
    loader = importlib.machinery.SourceFileLoader("prelude_tables", path)
    spec = importlib.util.spec_from_loader("prelude_tables", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # no scripts/__pycache__
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = bytecode
    return module


def test_the_tables_of_the_prelude() -> None:
    check_table("prelude_tables")


def test_another_number_of_torchs_would_be_seen(prelude_tables: Any) -> None:
    arrays = prelude_tables.arrays_of(prelude_tables.header().read_text(encoding="utf-8"))
    text = (prelude_tables.PRELUDE / "gamma.h").read_text(encoding="utf-8")
    assert prelude_tables.with_tables("gamma", text, arrays) == text
    arrays["_igam_helper_asymptotic_series.d.1"][0] *= 2
    assert prelude_tables.with_tables("gamma", text, arrays) != text
    del arrays["calc_ndtri.P0"]
    with pytest.raises(SystemExit, match="has no calc_ndtri.P0, from which the table ndtri_p0 is made"):
        prelude_tables.with_tables("gamma", text, arrays)


def test_a_table_without_a_source_and_a_source_without_a_table(prelude_tables: Any) -> None:
    arrays = prelude_tables.arrays_of(prelude_tables.header().read_text(encoding="utf-8"))
    with pytest.raises(SystemExit, match="the table other has no source"):
        prelude_tables.with_tables("gamma", "OB_TABLE T ob_other_S[] = {1.0};", arrays)
    with pytest.raises(SystemExit, match=r"gamma.h has no table zeta_a, digamma_a"):
        prelude_tables.with_tables("gamma", "", arrays)


def test_numbers_in_every_form_of_cpp(prelude_tables: Any) -> None:
    text = """
template <typename T>
inline C10_HOST_DEVICE T first(T x) {
    static const T A[] = {
            +1.5e+00, /* 2.0 */ - 7.25,  // 3.0
            .5E-1
    };
}
static scalar_t second(scalar_t a, scalar_t x) {
  static constexpr scalar_t d[2][2] = {{1., 2.}, {-3, 4}};
}
"""
    assert prelude_tables.arrays_of(text) == {
        "first.A": [1.5, -7.25, 0.05],
        "second.d.0": [1, 2],
        "second.d.1": [-3, 4],
    }
