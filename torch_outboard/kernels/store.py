# SPDX-License-Identifier: BSD-3-Clause
"""The user's plans on disk, so that a process needs not build what an earlier one has built, nor import what builds it.

The folder is the user's alone: what lies there is handed to the driver's compiler. Damage is told in the log, and the
plan is built again. Processes may share a folder: a file comes into being whole, plans of one class are files of their
own, and who writes one for the second time replaces it by the same.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from torch_outboard._sealed import check_private, write_whole
from torch_outboard.kernels.files import Answer, Entry, Folder, written
from torch_outboard.kernels.key import Sizes, code_hash

__all__ = ["Store", "default_folder", "versions_in"]

_log = logging.getLogger(__name__)

VARIABLE = "OUTBOARD_KERNEL_CACHE_DIR"
# A folder of one version has as many files at most; those of other versions go when nobody has used them for so long.
_MOST_FILES = 8192
_KEPT_SECONDS = 30 * 24 * 3600
# All plans of a class are read at its first call.
_MOST_PLANS = 32
_VERSION = re.compile("[0-9a-f]{16}")


@functools.cache
def _version() -> str:
    """Gives a hash of the versions of torch, of Python and of this package's code."""
    return hashlib.sha256(f"{torch.__version__} {sys.version_info[:2]} {code_hash()}".encode()).hexdigest()[:16]


def default_folder() -> Path | None:
    """Gives where plans are kept: as the variable says, else in the user's cache; None for nowhere."""
    if (given := os.environ.get(VARIABLE)) is not None:
        return Path(given) if given else None
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):
        home = os.environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        root = os.path.join(home, ".cache")
    return Path(root, "torch_outboard", "kernels")


def versions_in(folder: Path) -> list[Path]:
    """Gives the folders of all versions that have left plans there. What else lies in a user's folder is the user's."""
    if not folder.is_dir():
        return []
    return sorted(
        one for one in folder.iterdir() if _VERSION.fullmatch(one.name) and one.is_dir() and not one.is_symlink()
    )


class Store:
    """The plans of a folder, or of none. Threads may share it.

    Attributes
    ----------
    loaded, saved : int
        How many answers came from files, and how many went there.
    """

    def __init__(self, folder: Path | None) -> None:
        self.loaded = self.saved = 0
        self._folder = None if folder is None else Folder(folder / _version(), _remove_damaged)
        self._lock = threading.Lock()
        self._is_open_here: bool | None = None  # unknown

    @property
    def is_usable(self) -> bool:
        """Whether there is a folder, and nobody else may write there; the folder is made when this is first asked."""
        return self._usable() is not None

    def plans(self, key: str) -> list[Answer]:
        """Gives the plans that were saved for a class; if there are none, the refusal of the class."""
        folder = self._usable()
        found = [] if folder is None else folder.plans(key)
        with self._lock:
            self.loaded += len(found)
        return found

    def refusal(self, key: str, sizes: Sizes) -> Answer | None:
        """Gives the refusal of a call with these sizes, if one was saved."""
        folder = self._usable()
        found = None if folder is None else folder.refusal(key, sizes)
        with self._lock:
            self.loaded += found is not None
        return found

    def save(self, key: str, sizes: Sizes, answer: Answer) -> None:
        """Writes an answer. A folder that can't be written is told in the log once, and no more tried."""
        folder = self._usable()
        if folder is None:
            return
        path = folder.place_of(key, sizes, answer)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, written(key, sizes, answer))
        except OSError as error:
            _log.warning("plans are not kept: %s", error)
            self._is_open_here = False
            return
        with self._lock:
            self.saved += 1
            is_first = self.saved == 1
        with contextlib.suppress(OSError):  # another process prunes too
            _remove_oldest(folder.files(key), _MOST_PLANS)
            if is_first:
                self._prune(folder.path)

    def entries(self) -> Iterator[Entry]:
        """Gives what lies there of this version, in no order."""
        folder = self._usable()
        if folder is not None:
            yield from folder.entries()

    def _usable(self) -> Folder | None:
        return self._folder if self._folder is not None and self._is_open(self._folder.path) else None

    def _is_open(self, path: Path) -> bool:
        """Makes the folder, once, and looks whether anybody else may write there."""
        with self._lock:
            if self._is_open_here is None:
                try:
                    path.parent.parent.mkdir(parents=True, exist_ok=True)
                    for folder in (path.parent, path):
                        folder.mkdir(mode=0o700, exist_ok=True)
                        check_private(folder)
                    os.utime(path)
                    self._is_open_here = True
                except OSError as error:
                    _log.warning("plans are not kept: %s", error)
                    self._is_open_here = False
            return self._is_open_here

    def _prune(self, path: Path) -> None:
        """Removes what is beyond the bounds: the oldest files of this version, and versions that nobody uses."""
        import shutil

        for other in versions_in(path.parent):
            if other != path and time.time() - other.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(other, ignore_errors=True)
        _remove_oldest(list(path.glob("??/*")), _MOST_FILES)


def _remove_oldest(files: list[Path], most: int) -> None:
    if len(files) > most:
        for path in sorted(files, key=lambda one: one.stat().st_mtime)[: len(files) - most]:
            path.unlink(missing_ok=True)


def _remove_damaged(path: Path) -> None:
    _log.warning("the plan in %s is damaged; it is built again", path)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
