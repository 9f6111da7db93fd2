# SPDX-License-Identifier: BSD-3-Clause
"""The user's plans on disk. A process need not rebuild the plans of an earlier process, nor import the builder.

Only the user or root may be able to write to the folder, because its files are passed to the driver's compiler. A file
that is damaged or unreadable, or that other users may have written, is not used. The log reports this once, and the
plan is built again.

Processes may share a folder. Files appear only when complete, and each plan of a class has its own file. If two
processes write the same file, its content is the same.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import torch

from torch_outboard import _C
from torch_outboard._private_files import (
    LOCK_POLL_SECONDS,
    MAX_LOCK_POLLS,
    build_lock,
    make_private_folders,
    printable_path,
    read_private,
    reason_of,
    try_build_lock,
    write_atomically,
)
from torch_outboard.kernels.disk.files import (
    DROP_LOG,
    Answer,
    Entry,
    Folder,
    folders_in,
    is_plan_file_name,
    versions_in,
    written,
)
from torch_outboard.kernels.disk.key import Sizes, code_hash

__all__ = ["MAX_FILES", "VARIABLE", "Store", "default_folder"]

_log = logging.getLogger(__name__)

VARIABLE = "OUTBOARD_KERNEL_CACHE_DIR"
# The maximum number of files per version, and the time after which an unused version is removed.
MAX_FILES = 8192
_MAX_UNUSED_SECONDS = 30 * 24 * 3600
_MAX_FIRST_POLLS = 10  # checks whether another process builds, before an import that takes seconds
# The maximum number of refusals of single calls that a process writes.
_MAX_CALL_REFUSALS = 256
# The maximum size of the notes about dropped plans.
_MAX_DROPPED_BYTES = 1 << 16


@functools.cache
def _version() -> str:
    """Return a hash of the versions of torch, of Python and of this package's code."""
    return hashlib.sha256(f"{torch.__version__} {sys.version_info[:2]} {code_hash()}".encode()).hexdigest()[:16]


def default_folder() -> Path | None:
    """Return the folder of plans: the variable's folder, else a folder in the user's cache, else None.

    A relative path starts at the working directory when this package was imported, even if the process changes it
    later.
    """
    folder = _C.kernel_cache_folder()
    return Path(folder) if folder else None


class Store:
    """The plans of a folder, or no plans without a folder. Threads may share it.

    Attributes
    ----------
    loaded, saved : int
        The number of answers read from files, and written to files.
    max_files, max_plans_per_class : int
        The limits for all files, and for the plans of a class. A process that builds a pack lifts these limits.
    serves_own_sizes_only : bool
        True if stored plans serve only calls with the sizes and strides for which they were built. Then the plans that
        a call needs do not depend on earlier calls, so a pack has the plan of each of its calls.
    """

    max_files: ClassVar[int] = MAX_FILES
    # As many as a process keeps in memory. All of them are read at the first call of the class.
    max_plans_per_class: ClassVar[int] = 256
    serves_own_sizes_only: ClassVar[bool] = False

    def __init__(self, folder: Path | None) -> None:
        self.loaded = self.saved = 0
        self._folder = None if folder is None else Folder(folder / _version(), self._drop, self._warn_unreadable)
        self._lock = threading.Lock()
        self._reported: set[str] = set()
        self._seen: dict[str, set[str]] = {}  # per class, the files read and written
        self._dropped: set[tuple[str, str]] = set()  # class and text of dropped plans, because their files may remain
        self._is_marked = False
        self._singles = 0

    @property
    def is_usable(self) -> bool:
        """True if there is a folder that no other user may write. A missing folder is created."""
        return self._usable() is not None

    def plans(self, key: str, sizes: Sizes | None = None) -> list[Answer]:
        """Return the saved plans of a class, or its refusal if it has no plans.

        With `sizes`, return only plans that were built for a call with these sizes and strides.
        """
        folder = self._usable()
        if folder is None:
            return []
        names = set(folder.names(key))
        plans = [plan for plan in folder.plans(key, sizes) if (key, plan[0]) not in self._dropped]
        with self._lock:
            self._seen[key] = names
            self.loaded += len(plans)
        return plans

    @contextlib.contextmanager
    def build_lock(self, *keys: str, prepare: Callable[[], None] | None) -> Iterator[bool]:
        """Let one process at a time build for the first class within this scope.

        Yield True if another process has stored answers for these classes since this process read them. `prepare` is
        called first, as described at `_prepare`.
        """
        folder = self._usable() if keys else None
        if folder is None:
            yield False
            return
        path = folder.lock_path_of(keys[0])
        with contextlib.suppress(OSError):  # the folder cannot be written, so each process builds
            make_private_folders(path.parent)
        with self._lock:
            seen = [self._seen.setdefault(key, set(folder.names(key))) for key in keys]

        def is_stored() -> bool:
            return any(not names.issuperset(folder.names(key)) for key, names in zip(keys, seen, strict=True))

        # Release the slot for preparing only once this process holds the lock for building.
        with contextlib.ExitStack() as place:
            if prepare is not None:
                self._prepare(lambda: path.exists() or is_stored(), folder.path, prepare, place)
            with build_lock(path):
                place.close()
                yield is_stored()

    def _prepare(
        self,
        is_built: Callable[[], bool],
        folder: Path,
        prepare: Callable[[], None],
        place: contextlib.ExitStack,
    ) -> None:
        """Call `prepare`, whose imports take seconds, unless another process is building or has built the plan.

        No process waits while another prepares. At most as many processes as there are processors prepare at a time:
        for common plans, a few of many processes suffice.
        """
        places = [folder / f"preparing.{number}.part" for number in range(os.cpu_count() or 1)]
        for poll in range(MAX_LOCK_POLLS):
            if is_built():
                return
            # If other processes have built plans, one of them will probably start to build this
            # plan too.
            if poll >= (_MAX_FIRST_POLLS if self.loaded else 0):
                for path in places:
                    if place.enter_context(try_build_lock(path)):
                        prepare()
                        return
                    place.close()
            time.sleep(LOCK_POLL_SECONDS)

    def save(self, key: str, sizes: Sizes, answer: Answer) -> None:
        """Write a plan, or the refusal of a class. If that fails, the log reports the reason once."""
        folder = self._usable()
        if folder is None or (answer.refusal and not answer.is_of_class):
            return
        path = folder.place_of(key, answer)
        try:
            make_private_folders(path.parent)
            write_atomically(path, written(key, sizes, answer))
        except OSError as error:
            # The name of the unfinished file differs each time, so report only the system's reason.
            self._warn_once(f"plans are not stored: {reason_of(error)}", f"plans are not stored: {error.errno}")
            return
        self._dropped.discard((key, answer.text))
        with self._lock:
            self._seen.setdefault(key, set()).add(path.name)
            self.saved += 1
            is_first = self.saved == 1
        with contextlib.suppress(OSError):  # another process prunes too
            _remove_oldest(folder.files(key), Store.max_plans_per_class)
            if is_first:
                self._prune(folder.path)

    def save_single(self, key: str, sizes: Sizes, answer: Answer) -> None:
        """Write the refusal of a single call, under the key of that call.

        A process writes only a few of these: a loop in which each number is refused must not displace plans.
        """
        if self._singles < _MAX_CALL_REFUSALS:
            self._singles += 1
            self.save(key, sizes, answer._replace(is_of_class=True))  # the key is for these calls only

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of this version, in no particular order."""
        folder = self._usable()
        if folder is not None:
            yield from folder.entries()

    def drop(self, key: str, text: str, why: str) -> bool:
        """Remove the plan of a class with this text, and return whether there was one.

        The plan is not returned again, even if its file cannot be removed.
        """
        self._dropped.add((key, text))
        folder = self._usable()
        paths = [] if folder is None else [file for file in folder.files(key) if (folder.text(file, key) == text)]
        for path in paths:
            self._drop(path, f"{printable_path(path)} can't be used ({why})")
        return bool(paths)

    def dropped(self) -> list[str]:
        """Return the reasons why plans were dropped since the folder was created or cleared, one reason per line."""
        folder = self._usable()
        try:
            content = None if folder is None else read_private(folder.path / DROP_LOG)
        except OSError as error:
            return [reason_of(error)]
        return (content or b"").decode(errors="backslashreplace").splitlines()

    def _usable(self) -> Folder | None:
        """Return the folder if it is usable.

        Each call checks it again, because it may have been removed or created meanwhile.
        """
        if self._folder is None:
            return None
        path = self._folder.path
        try:
            make_private_folders(path.parent, path)
        except OSError as error:
            self._warn_once(f"plans are not stored: {reason_of(error)}; {VARIABLE} sets the folder")
            return None
        if not self._is_marked:
            self._is_marked = True
            with contextlib.suppress(OSError):  # the folder may be read-only
                os.utime(path)  # marks this version as used
        return self._folder

    def _warn_once(self, text: str, cause: str | None = None) -> None:
        """Log a text, once for each cause; the default cause is the text itself."""
        with self._lock:
            is_new = (cause or text) not in self._reported
            self._reported.add(cause or text)
        if is_new:
            _log.warning("%s", text)

    def _warn_unreadable(self, error: OSError) -> None:
        # Each file may cause such an error, so report each cause only once.
        self._warn_once(
            f"a plan can't be read ({reason_of(error)}); it is built again", f"can't be read: {error.errno}"
        )

    def _drop(self, path: Path, why: str) -> None:
        """Remove a file that is not used, and note it."""
        self._warn_once(f"the plan in {why}; it is built again")
        with contextlib.suppress(OSError):  # the folder may be read-only
            path.unlink()
            self._note_dropped(path.parent.parent / DROP_LOG, why)

    def _note_dropped(self, path: Path, why: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(path, flags, 0o600)
        try:
            about = os.fstat(file)
            if stat.S_ISREG(about.st_mode) and about.st_size < _MAX_DROPPED_BYTES:
                os.write(file, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {why}\n".encode(errors="backslashreplace"))
        finally:
            os.close(file)

    def _prune(self, path: Path) -> None:
        """Remove files beyond the limits: the oldest files of this version, and the files of unused versions."""
        from torch_outboard.kernels.disk.removal import remove_version

        for version_folder in versions_in(path.parent):
            if version_folder != path and time.time() - version_folder.stat().st_mtime > _MAX_UNUSED_SECONDS:
                remove_version(version_folder)
        files = [file for folder in folders_in(path) for file in folder.iterdir() if is_plan_file_name(file.name)]
        _remove_oldest(files, Store.max_files)


def _remove_oldest(files: list[Path], most: int) -> None:
    if len(files) > most:
        for path in sorted(files, key=lambda file: file.lstat().st_mtime)[: len(files) - most]:
            path.unlink(missing_ok=True)
