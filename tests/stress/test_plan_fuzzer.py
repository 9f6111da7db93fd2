# SPDX-License-Identifier: BSD-3-Clause
"""Texts of plans, changed at random, are read without a report of AddressSanitizer and UndefinedBehaviorSanitizer.

A million texts, or OUTBOARD_FUZZ_PLANS of them, take some three minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
TEXTS = int(os.environ.get("OUTBOARD_FUZZ_PLANS", "1000000"))
SEEDS = (1, 2, 3, 4)
SOURCES = [
    ROOT / "tests" / "native" / "fuzz_plans.cpp",
    *(
        ROOT / "csrc" / "kernels" / f"{name}.cpp"
        for name in ("argument_kind", "plan", "chunk_plan", "expression", "dtypes")
    ),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    assert compiler, "g++ is needed to compile the fuzzer"
    of_torch = Path(torch.__file__).parent
    path = tmp_path_factory.mktemp("fuzzer") / "fuzz_plans"
    flags = ["-std=c++20", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    folders = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'include'}", "-isystem", str(of_torch / "include")]
    libraries = [f"-L{of_torch / 'lib'}", f"-Wl,-rpath,{of_torch / 'lib'}", "-lc10"]
    compilation = subprocess.run(
        [compiler, *flags, *folders, *SOURCES, "-o", path, *libraries], capture_output=True, text=True
    )
    assert compilation.returncode == 0, compilation.stderr
    return path


@pytest.mark.parametrize("seed", SEEDS)
def test_texts_of_plans(program: Path, seed: int) -> None:
    command = [str(program), str(TEXTS // len(SEEDS)), str(seed)]
    # c10's own tables are never freed.
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-20_000:]
