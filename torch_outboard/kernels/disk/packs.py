# SPDX-License-Identifier: BSD-3-Clause
"""Packs: plans that come with a driver's package, so that its users need not build them.

A pack is a folder of files like a user's folder, but read-only, with one more file. `pack.json` records the versions of
torch, of this package's code and of the generator that the pack was made for. For other versions the pack is stale: it
is not used, and the log reports it once. Its plans are for the kind of machine that it names, which is in their keys
too.

A pack is used only if nobody else may have written it. Its owner must be the user, root, or the owner of the module
that names it, and others may not write it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_outboard._sealed import absolute_path, printable_path, read_private, reason_of
from torch_outboard.driver import Driver
from torch_outboard.kernels.disk.files import Answer, Folder
from torch_outboard.kernels.disk.key import code_hash, kind_of

__all__ = ["ABOUT", "VARIABLE", "Pack", "Packs", "check_target", "describe", "folders_of", "owner_of", "read_pack"]

_log = logging.getLogger(__name__)

VARIABLE = "OUTBOARD_KERNEL_PACKS"
ABOUT = "pack.json"


@dataclass(frozen=True)
class Pack:
    """A folder, its description, and why it isn't used; "" if it is used."""

    folder: Folder
    about: Mapping[str, Any]
    obstacle: str


def check_target(folder: Path) -> None:
    """Raise FileExistsError for a folder that has other files than a pack's."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not _is_pack(folder / ABOUT)):
        raise FileExistsError(f"{printable_path(folder)} is no pack and not empty: name another folder")


def _is_pack(about: Path) -> bool:
    try:
        found = json.loads(about.read_bytes()) if about.is_file() and not about.is_symlink() else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"torch", "torch_commit", "code"} <= found.keys()


def describe(device: int | None = None) -> dict[str, str]:
    """Return the versions that a pack is valid for; without a device, the versions that are known without one."""
    return {
        # Wheels of one release for different accelerators are of one commit.
        "torch": torch.__version__.partition("+")[0],
        "torch_commit": torch.version.git_version or "",
        "code": code_hash(),
        **({} if device is None else kind_of(device)),
    }


def folders_of(driver: type[Driver] | None) -> list[Path]:
    """Return the folders of packs: those that the variable names, else the driver's.

    A driver's relative path starts at the folder of the module that names it. A relative path of the variable starts at
    the process's folder when this package was imported. If a module has no file, its relative paths are reported and
    left out.
    """
    if (given := os.environ.get(VARIABLE)) is not None:
        return [absolute_path(one) for one in given.split(os.pathsep) if one]
    if driver is None:
        return []
    module = _module_file(driver)
    found = [Path(one) if module is None else module.parent / one for one in driver.kernel_packs]
    for one in found:
        if not one.is_absolute():
            _log.warning(
                "the pack of kernels in %s is not used: the module of %s has no file beside which it could lie; "
                "name an absolute path",
                printable_path(one),
                driver.__qualname__,
            )
    return [one for one in found if one.is_absolute()]


def owner_of(driver: type[Driver] | None) -> int:
    """Return the user whose packs are trusted because the driver's code is: -1 for none."""
    module = None if driver is None or VARIABLE in os.environ else _module_file(driver)
    return -1 if module is None or not module.exists() else module.stat().st_uid


def _module_file(driver: type[Driver]) -> Path | None:
    """Return the file of the module that names the driver's packs."""
    owner = next(one for one in driver.__mro__ if "kernel_packs" in vars(one))
    path = getattr(sys.modules.get(owner.__module__), "__file__", None)
    return absolute_path(path) if path else None


def read_pack(path: Path, device: int | None = None, trusted: int = -1) -> Pack:
    """Read a pack and check that it is valid for this process, and for a device's generator if a device is given.

    The machine is not checked. It is in the keys of the plans, and the pack may be for another device of the driver.
    """
    folder = Folder(path, _tell_refused, _tell_unreadable, trusted)
    try:
        content = read_private(path / ABOUT, trusted)
        if content is None:
            return Pack(folder, {}, f"its {ABOUT} can't be read, FileNotFoundError: there is none")
        about = json.loads(content)
        differing = [name for name, value in describe(device).items() if name != "machine" and about[name] != value]
    except OSError as error:
        return Pack(folder, {}, f"its {ABOUT} can't be read, {type(error).__name__}: {reason_of(error)}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return Pack(folder, {}, f"its {ABOUT} can't be read, {type(error).__name__}: {error}")
    if differing:
        return Pack(folder, about, f"it was made for another {' and another '.join(differing)}")
    return Pack(folder, about, "")


class Packs:
    """The packs of some folders, which are read when the first plan is asked for. For one thread.

    Attributes
    ----------
    loaded : int
        The number of answers from packs.
    """

    def __init__(self, folders: Iterable[Path], trusted: int = -1) -> None:
        self.loaded = 0
        self._trusted = trusted
        self._paths = list(folders)
        self._used: list[Folder] | None = None
        self._dropped: set[tuple[str, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._paths)

    def plans(self, key: str, device: int) -> list[Answer]:
        """Return the plans of a class, and its refusals."""
        found = [answer for one in self._usable(device) for answer in one.plans(key)]
        return self._count([answer for answer in found if (key, answer.text) not in self._dropped])

    def drop(self, key: str, text: str, why: str) -> None:
        """Stop returning the plan of a class that has this text. Its file stays, because packs are only read."""
        self._dropped.add((key, text))
        for folder in self._used or []:
            for path in folder.files(key):
                if folder.text(path, key) == text:
                    _tell_refused(path, f"{printable_path(path)} can't be used ({why})")

    def _count(self, found: list[Answer]) -> list[Answer]:
        self.loaded += len(found)
        return found

    def _usable(self, device: int) -> list[Folder]:
        if self._used is None:
            read = [read_pack(path, device, self._trusted) for path in self._paths]
            for one in read:
                if one.obstacle:
                    _log.warning(
                        "the pack of kernels in %s is not used: %s", printable_path(one.folder.path), one.obstacle
                    )
            self._used = [one.folder for one in read if not one.obstacle]
        return self._used


def _tell_refused(path: Path, why: str) -> None:
    _log.warning("the plan of a pack in %s; it is built", why)


def _tell_unreadable(error: OSError) -> None:
    _log.warning("a plan of a pack can't be read (%s); it is built", reason_of(error))
