# SPDX-License-Identifier: BSD-3-Clause
"""The build of a program of this folder with the core's and the allocators' sources, for a separate process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
TORCH = Path(torch.__file__).parent


def build(source: Path, folder: Path, *flags: str) -> Path:
    """Return the path of the program. Objects stay in the folder, so a second program compiles one file.

    The files of each folder are compiled together, as in the build: two thirds of their time are torch's headers.
    CMAKE_CXX_COMPILER_LAUNCHER, such as `ccache`, applies here too; MAX_JOBS limits the parallel compilations, 2 if
    unset.
    """
    compiler = shutil.which("g++")
    assert compiler, "g++ is needed to compile the native tests"
    header = ROOT / "include" / "torch_outboard" / "driver.h"
    run([sys.executable, str(ROOT / "cmake" / "contract.py"), str(header), str(folder / "built" / "contract.inc")])
    of_torch = TORCH / "include"
    includes = [folder, ROOT / "include", ROOT / "csrc", ROOT, of_torch, of_torch / "torch/csrc/api/include"]
    # Else g++ may compile against another standard library's ABI than torch was.
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    minor = torch.__version__.split(".")[1]
    options = ["-std=c++20", "-O1", "-g1", abi, f"-DOUTBOARD_TORCH_MINOR={minor}", *flags, "-pthread"]
    options += [f"-I{path}" for path in includes]
    launcher = os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", "").split()

    def compile_one(path: Path) -> Path:
        object_file = folder / f"{path.parent.name}-{path.stem}.o"
        if not object_file.exists():
            run([*launcher, compiler, *options, "-c", str(path), "-o", str(object_file)])
        return object_file

    def together(name: str) -> Path:
        group = folder / f"{name}.cpp"
        files = sorted((ROOT / "csrc" / name).glob("*.cpp"))
        group.write_text("".join(f'#include "{file}"\n' for file in files), encoding="utf-8")
        return group

    sources = [source, together("core"), together("memory")]
    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS", "2"))) as pool:
        objects = list(pool.map(compile_one, sources))
    program = folder / source.stem
    libraries = [f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}", "-lc10", "-ltorch_cpu"]
    run([compiler, *flags, *map(str, objects), "-o", str(program), *libraries, "-pthread"])
    return program


def run(command: list[str], env: dict[str, str] | None = None, timeout: float = 1200) -> str:
    """Return the output of the command; fail the test with it if the status is not 0."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=os.environ | (env or {}))
    output = result.stdout + result.stderr
    assert result.returncode == 0, f"{' '.join(command)}\nstatus {result.returncode}\n{output[-20_000:]}"
    return output
