# SPDX-License-Identifier: BSD-3-Clause
"""Where C++ extensions find torch-outboard's headers and its library."""

from __future__ import annotations

from pathlib import Path

__all__ = ["header_path", "include_paths", "library_paths"]

_PACKAGE = Path(__file__).resolve().parent


def include_paths() -> list[str]:
    """Gives the folders for `#include <torch_outboard/runtime.h>`; FileNotFoundError if the headers are not there."""
    # In a wheel within the package, in a source tree beside it.
    for folder in (_PACKAGE / "include", _PACKAGE.parent / "include"):
        if (folder / "torch_outboard" / "runtime.h").is_file():
            return [str(folder)]
    raise FileNotFoundError("torch_outboard's headers are not installed beside it; reinstall torch-outboard")


def header_path(name: str) -> Path:
    """Gives a header of torch_outboard's by its whole path, for code whose compiler's flags are somebody else's."""
    return Path(include_paths()[0]) / "torch_outboard" / name


def library_paths() -> list[str]:
    """Gives the folders for `-ltorch_outboard`; FileNotFoundError if the library was not built."""
    if not any((_PACKAGE / "lib").glob("libtorch_outboard.*")):
        raise FileNotFoundError("torch_outboard's library is not there: build it with scripts/build, or reinstall")
    return [str(_PACKAGE / "lib")]
