# SPDX-License-Identifier: BSD-3-Clause
"""The libraries of compiled kernels on disk, among Inductor's: loaded only if nobody else may have written them."""

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

from torch_outboard._sealed import make_private_folders, printable_path, read_private, write_whole

__all__ = ["KernelCache", "check_library", "hash_file", "private_folder"]

_log = logging.getLogger(__name__)


@clear_on_fresh_cache
class KernelCache(CppCodeCache):
    """Libraries of kernels, compiled as those of the CPU are but for the Python bindings, with their header too.

    Inductor takes a library that lies there for a good one. Here its hash lies beside it once it was loaded. A library
    that changed since, that others may have written or that doesn't load is compiled again, and a warning says so.
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
            write_whole(hash_file(Path(path)), _hash(content).encode())
        return library

    @classmethod
    def load_async(cls, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        _since(cache_dir())  # before anything is compiled in it
        load = super().load_async(*args, **kwargs)

        def load_or_rebuild() -> Any:
            try:
                return load()
            except OSError as error:
                # The library is gone, so that this compiles it. A second failure is no damage of the cache.
                _log.warning("%s; it is compiled again", error)
                return load()

        return load_or_rebuild


def private_folder(path: str | Path) -> None:
    """Make a folder, or repair its mode, so that its user alone may write it. OSError if that can't be."""
    try:
        make_private_folders(Path(path))
    except OSError as error:
        raise OSError(
            error.errno, f"compiled kernels can't lie there: {error.strerror}; TORCHINDUCTOR_CACHE_DIR names the folder"
        ) from error


@functools.cache
def _since(folder: str) -> int:
    """Make Inductor's folder private, and return when: what was written later nobody else can have reached."""
    private_folder(folder)
    return time.time_ns()


def check_library(library: Path) -> bytes | None:
    """Raise OSError unless it is what was compiled. Return its content if there is no hash of it yet, else None."""
    private_folder(library.parent)
    noted = read_private(hash_file(library))
    about = library.lstat()
    if not stat.S_ISREG(about.st_mode) or about.st_uid not in (os.geteuid(), 0):
        raise OSError(f"the compiled kernel {printable_path(library)} is a link or another user's")
    is_open = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) != 0
    content = library.read_bytes()
    if noted is None:
        # A umask may let the compiler's files be written by others, who can't reach them in the folder as it is now.
        is_good = _is_whole(content) and not (is_open and about.st_ctime_ns < _since(cache_dir()))
    else:
        is_good = _hash(content).encode() == noted
    if not is_good:
        raise OSError(f"the compiled kernel {printable_path(library)} is not the one that was compiled")
    if is_open:  # as a new file, which nobody has opened
        write_whole(library, content)
    return content if noted is None else None


def hash_file(library: Path) -> Path:
    """Return where the hash of a library lies."""
    return library.with_name(library.name + ".sha256")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_whole(content: bytes) -> bool:
    """Whether an ELF file is as long as its header says: loading a shorter one ends the process by a signal.

    The table of sections, which its header places, comes last in what linkers write.
    """
    if content[:5] != b"\x7fELF\x02":
        return True  # of another format or class: for the loader to say
    place = int.from_bytes(content[40:48], "little")
    size, count = int.from_bytes(content[58:60], "little"), int.from_bytes(content[60:62], "little")
    return place + size * count <= len(content)
