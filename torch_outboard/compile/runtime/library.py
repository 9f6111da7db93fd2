# SPDX-License-Identifier: BSD-3-Clause
"""Libraries of compiled kernels in Inductor's cache, loaded only if no other user can have written them."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch._inductor.codecache import CppCodeCache, CppPythonBindingsCodeCache, clear_on_fresh_cache  # type: ignore[attr-defined]
from torch._inductor.runtime.cache_dir_utils import cache_dir

from torch_outboard._private_files import make_private_folders, printable_path, read_private, write_atomically

__all__ = ["KernelCache", "check_library", "hash_file", "private_folder"]

_log = logging.getLogger(__name__)


@clear_on_fresh_cache
class KernelCache(CppCodeCache):
    """A cache of kernel libraries, compiled like the CPU's and with the same header, but without Python bindings.

    Inductor trusts any library that it finds. This class stores a library's hash next to it after the first load. It
    warns and recompiles a library if it has changed, does not load, or other users may have written it.
    """

    cache: dict[str, Any] = {}
    cache_clear = staticmethod(cache.clear)
    cpp_compile_command_flags = CppPythonBindingsCodeCache.cpp_compile_command_flags

    @classmethod
    def _get_uncompiled_header(cls, device: str) -> str | None:
        return CppPythonBindingsCodeCache._get_uncompiled_header(device)

    @classmethod
    def _load_library(cls, path: str, key: str) -> Any:
        try:
            content = check_library(Path(path))
            library = super()._load_library(path, key)
        except OSError:
            os.remove(path)
            raise
        if content is not None:
            write_atomically(hash_file(Path(path)), _hash(content).encode())
        return library

    @classmethod
    def load_async(cls, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        _secure_folder(cache_dir())  # before the first compilation in this folder
        load = super().load_async(*args, **kwargs)

        def load_or_rebuild() -> Any:
            try:
                return load()
            except OSError as error:
                # The library is removed, so this call recompiles it. A second failure does not come
                # from the cache.
                _log.warning("%s; it is compiled again", error)
                return load()

        return load_or_rebuild


def private_folder(path: str | Path) -> None:
    """Create a folder, or repair its mode, so that only its user can write to it. Raise OSError on failure."""
    try:
        make_private_folders(Path(path))
    except OSError as error:
        raise OSError(
            error.errno,
            f"compiled kernels cannot be stored: {error.strerror}; set TORCHINDUCTOR_CACHE_DIR to another folder",
        ) from error


@functools.cache
def _secure_folder(folder: str) -> int:
    """Make Inductor's folder private and return the time: other users cannot write to files created later."""
    private_folder(folder)
    return time.time_ns()


def check_library(library: Path) -> bytes | None:
    """Raise OSError if a library was changed after compilation. Return its content if no hash is stored, else None."""
    private_folder(library.parent)
    noted = read_private(hash_file(library))
    about = library.lstat()
    if not stat.S_ISREG(about.st_mode) or about.st_uid not in (os.geteuid(), 0):
        raise OSError(f"the compiled kernel {printable_path(library)} is a symbolic link or belongs to another user")
    is_open = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) != 0
    content = library.read_bytes()
    if noted is None:
        # A umask may make the compiler's files writable by other users, but in a private folder
        # they cannot reach the files.
        is_good = _is_complete(content) and not (is_open and about.st_ctime_ns < _secure_folder(cache_dir()))
    else:
        is_good = _hash(content).encode() == noted
    if not is_good:
        raise OSError(f"the compiled kernel {printable_path(library)} has changed since it was compiled")
    if is_open:  # rewrite it as a new file, which no process has open
        write_atomically(library, content)
    return content if noted is None else None


def hash_file(library: Path) -> Path:
    """Return the path of a library's hash."""
    return library.with_name(library.name + ".sha256")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_complete(content: bytes) -> bool:
    """Return True if an ELF file is as long as its header states. Loading a truncated file kills the process.

    Linkers write the section table last; the header has its offset.
    """
    if content[:5] != b"\x7fELF\x02":
        return True  # another format or class: leave it to the loader
    place = int.from_bytes(content[40:48], "little")
    size, count = int.from_bytes(content[58:60], "little"), int.from_bytes(content[60:62], "little")
    return place + size * count <= len(content)
