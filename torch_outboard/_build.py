# SPDX-License-Identifier: BSD-3-Clause
"""The torch that the extension was built for, and the check that this torch is the running one.

Loading an extension that was built for another torch crashes or, worse, misdispatches. `check_torch_version` therefore
runs before any part of the extension is loaded. The build uses this file too, by its path: the file imports nothing of
the package.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "BuildInfo",
    "build_info",
    "check_built_for",
    "check_supported",
    "check_torch_version",
    "installed_torch",
    "rebuild_command",
    "torch_minor",
]

OLDEST_TORCH = (2, 11)
NEWEST_TORCH = (2, 15)

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class BuildInfo:
    """The record of a build: `torch` is a full version, `python` a minor one, `sanitize` often empty."""

    torch: str
    python: str
    sanitize: str = ""


def torch_minor(version: str) -> tuple[int, int]:
    """Return the minor line of a torch version: (2, 13) for 2.13.0+cpu."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError(f"{version!r} is not a version of torch")
    return int(match[1]), int(match[2])


def check_supported(version: str) -> None:
    """Raise ImportError for a torch that this release does not support."""
    if not OLDEST_TORCH <= torch_minor(version) <= NEWEST_TORCH:
        oldest, newest = (f"{major}.{minor}" for major, minor in (OLDEST_TORCH, NEWEST_TORCH))
        raise ImportError(
            f"torch-outboard works with torch {oldest} to {newest}, and torch {version} is installed. "
            f"Install one of these: {sys.executable} -m pip install 'torch>={oldest},<2.{NEWEST_TORCH[1] + 1}'"
        )


def build_info() -> BuildInfo | None:
    """Return the record of the build, or None if the extension is not built. A damaged record raises ImportError."""
    path = _PACKAGE / "_build_info.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return BuildInfo(**record)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ImportError(f"{path} cannot be read ({error}). Rebuild torch-outboard: {rebuild_command()}") from error


def rebuild_command() -> str:
    """Return the shell command that builds the extension for the running torch and Python."""
    source = _PACKAGE.parent
    if (source / "CMakeLists.txt").is_file() and (source / "scripts" / "build").is_file():
        return f"{source / 'scripts' / 'build'} --python {sys.executable}"
    return (
        f"{sys.executable} -m pip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall "
        "--no-binary torch-outboard torch-outboard"
    )


def check_torch_version() -> None:
    """Raise ImportError unless the extension was built for the running torch and Python.

    Call this function before the extension is loaded: afterwards is too late.
    """
    import torch

    check_built_for(str(torch.__version__))


def installed_torch() -> str:
    """Return the version of the imported or importable torch, if its files state the version without an import."""
    spec = importlib.util.find_spec("torch") if "torch" not in sys.modules else None
    if spec is not None and spec.origin is not None:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
        if (found := re.search(r"^__version__ = ['\"](.+)['\"]$", text, re.MULTILINE)) is not None:
            return found[1]
    import torch

    return str(torch.__version__)


def check_built_for(running: str) -> None:
    """Raise ImportError unless the extension was built for this version of torch and the running Python."""
    check_supported(running)
    built = build_info()
    if built is None:
        raise ImportError(f"torch-outboard's extension is not built. Build it: {rebuild_command()}")
    if torch_minor(built.torch) != torch_minor(running):
        raise ImportError(
            f"torch-outboard was built for torch {built.torch}, and torch {running} runs. "
            f"Rebuild it: {rebuild_command()}"
        )
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if built.python != python:
        raise ImportError(
            f"torch-outboard was built for Python {built.python}, and Python {python} runs. "
            f"Rebuild it: {rebuild_command()}"
        )
