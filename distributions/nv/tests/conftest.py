# SPDX-License-Identifier: BSD-3-Clause
"""Stand-ins for NVIDIA's libraries, compiled once, and programs that run on them without a GPU.

Run from a checkout of torch-outboard: some tests use its databases, and its programs of several ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torch_outboard import include_paths
from torch_outboard.testing import suite
from torch_outboard.testing.compiling import compile_once, shared_folder
from torch_outboard.testing.fork_server import COMPILER

if TYPE_CHECKING:
    from torch_outboard.testing.plugin import RunPython  # pytest imports it as the plugin below

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
# After installed packages, so that an installed wheel is tested.
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

pytest_plugins = ["torch_outboard.testing.plugin"]

CompileFake = Callable[..., Path]
RunProgram = Callable[..., subprocess.CompletedProcess[str]]
STRICT = ["-Wall", "-Wextra", "-Werror"]

# Does what `python PROGRAM` does.
PROGRAM = """
import os, runpy, sys
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore these tests in a process with a driver: each test attaches a driver in its own process."""
    return True if config.getoption("--driver") is not None else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("long") and os.environ.get("OUTBOARD_TEST_LONG") != "1":
        pytest.skip("capability: time. `make stress` runs it, or OUTBOARD_TEST_LONG=1")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of files that the run's processes compile once and share."""
    return shared_folder(tmp_path_factory, "native-nv")


@pytest.fixture(scope="session")
def fakes(compiled: Path) -> CompileFake:
    """Return a function that compiles a stand-in for a vendor's library, under the vendor's name."""

    def fake(name: str, library: str, *flags: str) -> Path:
        options = ["-O1", "-fPIC", "-shared", "-pthread", *STRICT, f"-I{include_paths()[0]}"]
        return compile_once(compiled / library, *options, HERE / "fakes" / f"{name}.cpp", *flags)

    return fake


@pytest.fixture(scope="session")
def programs(compiled: Path) -> Callable[[Path], Path]:
    """Return a function that compiles a test program in C++ once and returns its path."""

    def program(source: Path) -> Path:
        headers = [f"-I{include_paths()[0]}", f"-I{suite('native').folder}"]
        return compile_once(compiled / source.stem, "-O0", "-pthread", *STRICT, *headers, source)

    return program


@pytest.fixture
def every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset variables that hide the machine's GPUs, because they would also hide a stand-in's."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def run_program(run_python: RunPython, every_gpu: None) -> RunProgram:
    """Return a function that runs a Python program of `programs`; the process has imported torch's compiler."""

    def run_it(name: str, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in (HERE / "programs" / name, *arguments)]
        return run_python(PROGRAM, *words, env={"OUTBOARD_FALLBACK": "silent", **variables}, imports=COMPILER)

    return run_it


@pytest.fixture
def nvrtc() -> str:
    """Return the paths of the installed NVRTCs; skip if there is none."""
    from torch_outboard_nv import NvDriver

    path = NvDriver().option_values["nvrtc"]
    if path is None:
        pytest.skip("capability: NVRTC, of the package nvidia-cuda-nvrtc")
    return str(path)
