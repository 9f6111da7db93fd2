# SPDX-License-Identifier: BSD-3-Clause
"""Files that are kept for later processes: written whole or not at all, with a hash by which damage is found."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

__all__ = ["check_private", "sealed", "unsealed", "write_whole"]


def sealed(content: bytes) -> bytes:
    """Gives a content behind the hash of it, by which damage is found."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def unsealed(content: bytes) -> bytes | None:
    """Gives what was sealed, or None if this isn't what was written."""
    digest, _, rest = content.partition(b"\n")
    return rest if hashlib.sha256(rest).hexdigest().encode() == digest else None


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file under another name and renames it, so that no process sees a part. OSError leaves none behind."""
    file, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
        os.replace(name, path)
    except BaseException:  # raised again, whatever it is: nothing may be left
        os.unlink(name)
        raise


def check_private(path: Path) -> None:
    """Raises PermissionError unless it is a folder or a file that this process's user alone owns and may write."""
    about = path.lstat()
    is_plain = stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode)
    if not is_plain or about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        kind = "folder" if path.suffix == "" else "file"
        raise PermissionError(f"{path} is no {kind} that its user alone may write")
