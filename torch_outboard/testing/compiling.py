# SPDX-License-Identifier: BSD-3-Clause
"""C++ programs and libraries used by driver tests, each compiled once per run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["compile_once", "find_compiler", "one_at_a_time", "run", "shared_folder"]


def run(*command: str | Path, timeout: float = 300, env: dict[str, str] | None = None) -> None:
    """Run a program with `env` added to the environment; fail with its output if its status is not 0."""
    words = [str(word) for word in command]
    environment = {**os.environ, **(env or {})}
    result = subprocess.run(words, capture_output=True, text=True, timeout=timeout, env=environment)
    assert result.returncode == 0, f"{' '.join(words)}\n{result.stdout}\n{result.stderr}"


def find_compiler(name: str) -> str:
    """Return the path of a compiler; fail if there is none."""
    path = shutil.which(name)
    assert path, f"{name} is needed to compile the native tests"
    return path


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return the folder of this name that all pytest-xdist workers share."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process of the run create the files at a path, while other processes wait."""
    with open(path.with_name(path.name + ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_once(path: Path, *arguments: str | Path) -> Path:
    """Compile a C++20 program or library with g++, unless another process of the run has done so; return its path."""
    with one_at_a_time(path):
        if not path.exists():
            run(find_compiler("g++"), "-std=c++20", *arguments, "-o", path, "-ldl")
    return path
