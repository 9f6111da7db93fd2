# SPDX-License-Identifier: BSD-3-Clause
"""The paths of torch-outboard's headers and library, for C++ extensions."""

from __future__ import annotations

from pathlib import Path

from torch_outboard._build import core_folder

__all__ = ["header_path", "include_paths", "library_paths"]

_PACKAGE = Path(__file__).resolve().parent


def include_paths() -> list[str]:
    """Return the folders for `#include <torch_outboard/runtime.h>`; raise FileNotFoundError without the headers."""
    # A wheel has the headers inside the package, a source tree next to it.
    for folder in (_PACKAGE / "include", _PACKAGE.parent / "include"):
        if (folder / "torch_outboard" / "runtime.h").is_file():
            return [str(folder)]
    raise FileNotFoundError("torch_outboard's headers are missing from the installation: reinstall torch-outboard")


def header_path(name: str) -> Path:
    """Return the absolute path of a header of torch_outboard, for code whose compiler flags are set elsewhere."""
    return Path(include_paths()[0]) / "torch_outboard" / name


def library_paths() -> list[str]:
    """Return the folders for `-ltorch_outboard`; raise FileNotFoundError if the library is not built."""
    folder = core_folder() / "lib"
    if not any(folder.glob("libtorch_outboard.*")):
        raise FileNotFoundError("torch_outboard's library is missing: build it with scripts/build, or reinstall")
    return [str(folder)]
