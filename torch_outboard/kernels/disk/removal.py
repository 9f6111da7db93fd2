# SPDX-License-Identifier: BSD-3-Clause
"""Removal of this package's own files and nothing else. Files are recognized by name, and links are never followed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch_outboard.kernels.disk.files import DROP_LOG, folders_in, is_plan_file_name, versions_in

__all__ = ["FolderContent", "clear_folder", "content_of", "programs_in", "remove_plans", "remove_version"]

# Names that csrc/kernels/program_store.cpp chooses; the last form is
# the name of an unfinished file.
_PROGRAM = re.compile(r"[0-9a-f]{64}(\.[0-9A-Za-z]{6})?")


def _is_program(name: str) -> bool:
    return _PROGRAM.fullmatch(name) is not None


def _is_note(name: str) -> bool:
    return name == DROP_LOG


def _entries(folder: Path, is_ours: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Return the names of our files in a folder, and all other names.

    A folder that is a link contains none of our files.
    """
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return [], []
        with os.scandir(folder) as listed:
            named = [(entry.name, is_ours(entry.name) and entry.is_file(follow_symlinks=False)) for entry in listed]
    except FileNotFoundError:
        return [], []
    return sorted(name for name, ours in named if ours), sorted(name for name, ours in named if not ours)


@dataclass(frozen=True)
class FolderContent:
    """The content of a folder of plans: our files, and other files."""

    versions: list[Path]
    programs: list[Path]
    others: list[Path]


def programs_in(folder: Path) -> list[Path]:
    """Return the files of programs that drivers' compilers built, below a folder of plans."""
    ours, _ = _entries(folder / "programs", _is_program)
    return [folder / "programs" / name for name in ours]


def content_of(folder: Path) -> FolderContent:
    """Return the content of a folder of plans and programs."""
    versions = versions_in(folder)
    expected = {*versions, folder / "programs", folder / "schedules"}
    others = [folder / name for name in _entries(folder, lambda name: False)[1] if folder / name not in expected]
    others += [folder / "programs" / name for name in _entries(folder / "programs", _is_program)[1]]
    if (folder / "programs").is_symlink():
        others.append(folder / "programs")
    for version in versions:
        inner = folders_in(version)
        names = _entries(version, _is_note)[1]
        others += [version / name for name in names if version / name not in inner]
        others += [
            folder_inside / name for folder_inside in inner for name in _entries(folder_inside, is_plan_file_name)[1]
        ]
    return FolderContent(versions, programs_in(folder), sorted(others))


def clear_folder(folder: Path) -> FolderContent:
    """Remove the plans and the programs of a folder, and return the remaining content."""
    for version in versions_in(folder):
        remove_version(version)
    _remove_files(folder / "programs", _is_program)
    return content_of(folder)


def remove_plans(folder: Path) -> int:
    """Remove the files of plans below a folder, and folders that become empty. Return the number of files."""
    count = 0
    for versioned in folders_in(folder):
        count += _remove_files(versioned, is_plan_file_name)
        _remove_if_empty(versioned)
    return count


def remove_version(folder: Path) -> None:
    """Remove the plans of a version, and its folder if it becomes empty."""
    remove_plans(folder)
    _remove_files(folder, _is_note)
    _remove_if_empty(folder)


def _remove_files(folder: Path, is_ours: Callable[[str], bool]) -> int:
    names, _ = _entries(folder, is_ours)
    for name in names:
        (folder / name).unlink(missing_ok=True)
    return len(names)


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
