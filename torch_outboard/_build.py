# SPDX-License-Identifier: BSD-3-Clause
"""The torch that the extension was built for, and the check that this torch is the running one.

Loading an extension built for another torch crashes or, worse, misdispatches. `check_torch_version` therefore runs
before any part of the extension is loaded. The build also loads this file, by path, so it must import nothing from the
package.

A build from source has one core, in the package's own folder. A released wheel has a core for each minor version of
torch, in lib/torch_<major>_<minor>/. `add_core` adds the core for the installed torch to the package.
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
    "add_core",
    "build_info",
    "check_built_for",
    "check_supported",
    "check_torch_version",
    "core_folder",
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
    """Return the minor version of torch: (2, 13) for 2.13.0+cpu."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError(f"{version!r} is not a version of torch")
    return int(match[1]), int(match[2])


def check_supported(version: str) -> None:
    """Raise ImportError for a version of torch that this release does not support."""
    if not OLDEST_TORCH <= torch_minor(version) <= NEWEST_TORCH:
        oldest, newest = (f"{major}.{minor}" for major, minor in (OLDEST_TORCH, NEWEST_TORCH))
        raise ImportError(
            f"torch-outboard works with torch {oldest} to {newest}, but torch {version} is installed. "
            f"Install one of these: {sys.executable} -m pip install 'torch>={oldest},<2.{NEWEST_TORCH[1] + 1}'"
        )


def _cores() -> dict[tuple[int, int], Path]:
    """Return the core folders of a released wheel, by torch's minor version; {} for a build from source."""
    if (_PACKAGE / "_build_info.json").is_file():
        return {}
    folders = {}
    for folder in (_PACKAGE / "lib").glob("torch_*_*"):
        if (match := re.fullmatch(r"torch_(\d+)_(\d+)", folder.name)) is not None:
            folders[int(match[1]), int(match[2])] = folder
    return dict(sorted(folders.items()))


def core_folder() -> Path:
    """Return the folder of the core for the installed torch, or the package's own folder if there is none."""
    cores = _cores()
    return cores.get(torch_minor(installed_torch()), _PACKAGE) if cores else _PACKAGE


def add_core(path: list[str]) -> None:
    """Add the folder of the core for the installed torch to the package's path, before the core is imported."""
    if _cores() and (folder := core_folder()) != _PACKAGE:
        path.append(str(folder))


def build_info() -> BuildInfo | None:
    """Return the record of the build, or None if the extension is not built. A damaged record raises ImportError."""
    path = core_folder() / "_build_info.json"
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

    Call this function before the extension is loaded.
    """
    import torch

    check_built_for(str(torch.__version__))


def installed_torch() -> str:
    """Return the version of the imported or importable torch, if its files state it without an import."""
    spec = importlib.util.find_spec("torch") if "torch" not in sys.modules else None
    if spec is not None and spec.origin is not None:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
        if (match := re.search(r"^__version__ = ['\"](.+)['\"]$", text, re.MULTILINE)) is not None:
            return match[1]
    import torch

    return str(torch.__version__)


def check_built_for(running: str) -> None:
    """Raise ImportError unless the extension was built for this version of torch and the running Python."""
    check_supported(running)
    built = build_info()
    if built is None and (cores := _cores()):
        served = ", ".join(f"{major}.{minor}" for major, minor in cores)
        newest = ".".join(map(str, max(cores)))
        raise ImportError(
            f"This torch-outboard wheel supports torch {served}, but torch {running} is installed. Install another "
            f"torch ({sys.executable} -m pip install 'torch=={newest}.*'), or build the core: {rebuild_command()}"
        )
    if built is None:
        raise ImportError(f"torch-outboard's extension is not built. Build it: {rebuild_command()}")
    if torch_minor(built.torch) != torch_minor(running):
        raise ImportError(
            f"torch-outboard was built for torch {built.torch}, but torch {running} is running. "
            f"Rebuild it: {rebuild_command()}"
        )
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if built.python != python:
        raise ImportError(
            f"torch-outboard was built for Python {built.python}, but Python {python} is running. "
            f"Rebuild it: {rebuild_command()}"
        )
