# SPDX-License-Identifier: BSD-3-Clause
"""Files kept for later processes: written completely or not at all, with a hash that reveals damage.

Such a file may run as code in this process. A single function therefore reads all such files, and accepts only files
that no other user can have written. csrc/core/private_files.h defines the rules for Python and C++.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from torch_outboard import _C

# Seconds after which an unfinished file counts as abandoned: writing a file takes far less.
_ABANDONED_SECONDS = 3600
LOCK_POLL_SECONDS = 0.02  # between two checks of a file that another process has locked
MAX_LOCK_POLLS = 3000
_UNFINISHED = re.compile(r".+\.[a-z0-9_]{8}\.part")

__all__ = [
    "MAX_LOCK_POLLS",
    "LOCK_POLL_SECONDS",
    "absolute_path",
    "try_build_lock",
    "make_private_folders",
    "parse_checked",
    "printable_path",
    "read_private",
    "reason_of",
    "with_checksum",
    "build_lock",
    "checked_content",
    "write_atomically",
]


def read_private(path: Path, trusted: int = -1) -> bytes | None:
    """Return the content of a file, or None if there is no such file.

    If another user may have written the file, PermissionError says what to do; other failures raise OSError. `trusted`
    is an additional user whose files are accepted.
    """
    return _C.read_private(path, trusted)


def make_private_folders(*paths: Path) -> None:
    """Create folders that only their user may write, outer ones first. Raise OSError on failure."""
    for path in paths:
        _C.make_private_folder(path)


def reason_of(error: OSError) -> str:
    """Return an error's text, without its number if the text suffices."""
    return error.strerror if error.filename is None and error.strerror else str(error)


def absolute_path(path: str) -> Path:
    """Return an absolute path; a relative path is resolved against the working directory at this package's import."""
    return Path(_C.absolute_path(path))


def printable_path(path: Path | str) -> str:
    """Return a path for a message, with undecodable bytes as \\xNN."""
    return os.fsencode(path).decode(errors="backslashreplace")


def with_checksum(content: bytes) -> bytes:
    """Return the content preceded by its hash, which reveals damage."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def checked_content(content: bytes) -> bytes | None:
    """Return the content of a file with a checksum, or None if the file is damaged."""
    digest, _, rest = content.partition(b"\n")
    return rest if hashlib.sha256(rest).hexdigest().encode() == digest else None


def parse_checked(content: bytes, names: Iterable[str]) -> dict[str, Any] | None:
    """Return the JSON object of a file with a checksum, or None if it is damaged or its keys are not `names`."""
    rest = checked_content(content)
    try:
        fields = None if rest is None else json.loads(rest)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and fields.keys() == set(names) else None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it, so that no process reads an incomplete file.

    An OSError leaves no file behind.
    """
    _remove_abandoned(path.parent)
    file, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".part")
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
        os.replace(name, path)
    except BaseException:  # always re-raised, after removing the temporary file
        os.unlink(name)
        raise


@contextlib.contextmanager
def build_lock(path: Path) -> Iterator[None]:
    """Do the work that a file represents within this scope, or wait until another process has done it.

    The wait takes at most a minute. csrc/core/build_lock.h explains it.
    """
    file = _open_lock(path)
    if file is None:
        yield
        return
    with file:
        if _lock(file):
            with _unlock_at_end(path, file):
                yield
            return
        for _ in range(MAX_LOCK_POLLS):
            time.sleep(LOCK_POLL_SECONDS)
            if _lock(file):
                break  # closing it lets waiting processes find a result, or work in parallel
    yield


@contextlib.contextmanager
def try_build_lock(path: Path) -> Iterator[bool]:
    """Hold a file within this scope, like `build_lock`, but yield False at once if another process holds it."""
    file = _open_lock(path)
    if file is None:
        yield True
        return
    with file:
        if _lock(file):
            with _unlock_at_end(path, file):
                yield True
        else:
            yield False


def _open_lock(path: Path) -> IO[str] | None:
    """Return the file, or None if the folder is not writable: then each process works on its own."""
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except OSError:
        return None


@contextlib.contextmanager
def _unlock_at_end(path: Path, file: IO[str]) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may hold the file open


def _lock(file: IO[str]) -> bool:
    """Return False if another process has locked the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system does not support locks
    return True


@functools.cache
def _remove_abandoned(folder: Path) -> None:
    """Remove unfinished files of killed writers, once per process."""
    with contextlib.suppress(OSError), os.scandir(folder) as listed:  # other processes remove them too
        for entry in listed:
            is_file = _UNFINISHED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            if is_file and time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_SECONDS:
                os.unlink(entry.path)
