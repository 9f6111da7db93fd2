# SPDX-License-Identifier: BSD-3-Clause
"""Kernels compile for NVIDIA's chips without a GPU: the driver's own, generated ones, and Triton's."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from torch_outboard.testing.compiling import run

PROGRAMS = Path(__file__).resolve().parent / "programs"


def python_env(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PYTHONPATH": path, "OUTBOARD_FALLBACK": "silent", **more}


@pytest.fixture
def run_own_kernels(run_program, fakes, tmp_path):
    """Return a function that runs the driver's own kernels with a compiler, on a chip."""

    def run_them(nvrtc: str | Path, chip: str, *stored: str, **more: str) -> None:
        variables = {"FAKE_CUDA_LAUNCHES": str(tmp_path / "launches"), "OUTBOARD_PROVIDERS": "native"}
        library = fakes("fake_cuda", "libcuda.so.1")
        run_program("own_kernels.py", library, nvrtc, *stored, FAKE_CUDA_MAJOR=chip, **variables, **more)

    return run_them


@pytest.mark.parametrize("chip", ["9", "12"])
def test_the_drivers_own_kernels(run_own_kernels, nvrtc, chip):
    """NVRTC compiles the kernels for the chip at their first use, and the launches match the compiled kernels."""
    run_own_kernels(nvrtc, chip)


def test_later_processes_load_the_drivers_own_kernels(run_own_kernels, nvrtc, tmp_path):
    folder = tmp_path / "kept"
    run_own_kernels(nvrtc, "9", OUTBOARD_KERNEL_CACHE_DIR=str(folder))
    run_own_kernels("/nowhere/libnvrtc.so", "9", "stored", OUTBOARD_KERNEL_CACHE_DIR=str(folder))
    for path in (folder / "programs").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    run_own_kernels("/nowhere/libnvrtc.so", "9", OUTBOARD_KERNEL_CACHE_DIR=str(folder))


# The share of the database that is compiled for chips that NVRTC 13 has dropped.
OLD_CHIPS = {"24": pytest.mark.database, "1": pytest.mark.long}


def test_own_kernels_without_a_compiler(run_own_kernels, tmp_path):
    run_own_kernels(tmp_path / "missing", "9")


def test_own_kernels_for_a_chip_that_the_compiler_does_not_know(run_own_kernels, nvrtc):
    run_own_kernels(nvrtc, "3")


@pytest.mark.parametrize(
    ("chip", "share"),
    [
        ("9", "24"),
        pytest.param("9", "4", marks=pytest.mark.long),
        # Maxwell, Pascal and Volta, for which NVRTC 12 compiles.
        *(pytest.param(chip, share, marks=mark) for chip in "567" for share, mark in OLD_CHIPS.items()),
    ],
)
@pytest.mark.usefixtures("nvrtc")
def test_generated_kernels_are_cuda(fakes, every_gpu, chip, share):
    """A part of the operator database's kernels compile with NVRTC, which needs no GPU."""
    library = fakes("fake_cuda", "libcuda.so.1")
    command = [sys.executable, PROGRAMS / "cuda_texts.py", library, share]
    result = subprocess.run(command, capture_output=True, text=True, env=python_env(FAKE_CUDA_MAJOR=chip))
    assert result.returncode == 0, result.stderr
    *different, count = result.stdout.splitlines()
    assert not different, "\n".join(different)
    assert int(count.split()[0]) > 400 / int(share)


CALLS_OF_PACK = """{"programs": []}
["aten::maximum", "float32", [{"tensor": "float32 31:57 57:1"}, {"tensor": "float32 31:57 57:1"}]]
["aten::minimum", "float32", [{"tensor": "float32 31:57 57:1"}, {"tensor": "float32 31:57 57:1"}]]
["aten::mm", "float32", [{"tensor": "bfloat16 4096:512 512:1"}, {"tensor": "bfloat16 512:4096 4096:1"}]]
"""


@pytest.mark.usefixtures("nvrtc", "every_gpu")
def test_a_pack_replaces_the_compiler(fakes, tmp_path, monkeypatch):
    """With a pack that was built without a GPU, a process has every program, and needs neither NVRTC nor Inductor.

    Chips with different memory share all plans except plans of products, whose tiles depend on the memory. Nine
    programs for each chip are those of the driver's library.
    """
    monkeypatch.delenv("TORCHINDUCTOR_VEC_ISA_OK", raising=False)  # tests may set this; packs are built without it
    pack, calls = tmp_path / "pack", tmp_path / "calls"
    calls.write_text(CALLS_OF_PACK)
    command = [sys.executable, "-m", "torch_outboard", "kernels", "pack", pack, "--driver", "nv", "--calls", calls]
    process = subprocess.run(
        [*command, "--arch", "sm_90,sm_120", "--only", "^aten::m"],
        capture_output=True,
        text=True,
        env=python_env(),
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "4 plans and 24 programs in" in process.stdout
    files = {"OUTBOARD_KERNEL_PACKS": str(pack), "OUTBOARD_KERNEL_CACHE_DIR": ""}
    env = python_env(**files, FAKE_CUDA_LAUNCHES=str(tmp_path / "launches"), FAKE_CUDA_MAJOR="9")
    served = [sys.executable, PROGRAMS / "with_a_pack.py", fakes("fake_cuda", "libcuda.so.1"), tmp_path / "missing"]
    run(*served, env={**env, "OUTBOARD_FALLBACK": "error"}, timeout=300)


WRAPPERS = ("fx_wrapper", "cpp_wrapper")


@pytest.mark.skipif(find_spec("triton") is None, reason="capability: Triton, which torch for the CPU lacks")
@pytest.mark.parametrize(
    ("chip", "wrappers"),
    [("9", ()), *(pytest.param(chip, WRAPPERS, marks=pytest.mark.long) for chip in ("8", "10", "12"))],
)
def test_kernels_in_triton(fakes, every_gpu, tmp_path, chip, wrappers):
    """The kernels compile without a GPU, and their launches match the compiled kernels."""
    env = python_env(
        FAKE_CUDA_MAJOR=chip,
        FAKE_CUDA_LAUNCHES=str(tmp_path / "launches"),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
    )
    command = [sys.executable, "-W", "ignore", PROGRAMS / "cuda_triton.py", fakes("fake_cuda", "libcuda.so.1")]
    run(*command, *wrappers, env=env, timeout=600)
