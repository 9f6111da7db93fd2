# SPDX-License-Identifier: BSD-3-Clause
"""The libraries of compiled kernels on disk, among Inductor's."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch._inductor.codecache import CppCodeCache, CppPythonBindingsCodeCache, clear_on_fresh_cache, write_atomic  # type: ignore[attr-defined]

__all__ = ["KernelCache"]

_log = logging.getLogger(__name__)


@clear_on_fresh_cache
class KernelCache(CppCodeCache):
    """Libraries of kernels, compiled as those of the CPU are but for the Python bindings, with their header too.

    Inductor takes a library that lies there for a good one. Here its hash lies beside it once it was loaded; one that
    changed since, or that doesn't load, is compiled again, and a warning says so.
    """

    cache: dict[str, Any] = {}
    cache_clear = staticmethod(cache.clear)
    cpp_compile_command_flags = CppPythonBindingsCodeCache.cpp_compile_command_flags

    @classmethod
    def _get_uncompiled_header(cls, device: str) -> str | None:
        return CppPythonBindingsCodeCache._get_uncompiled_header(device)

    @classmethod
    def _load_library(cls, path: str, key: str) -> Any:
        if not _is_unchanged(Path(path)):
            os.remove(path)
            raise OSError(f"the compiled kernel {path} is not the one that was compiled")
        try:
            library = super()._load_library(path, key)
        except OSError:
            os.remove(path)
            raise
        _note_hash(Path(path))
        return library

    @classmethod
    def load_async(cls, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        load = super().load_async(*args, **kwargs)

        def load_or_rebuild() -> Any:
            try:
                return load()
            except OSError as error:
                # The library is gone, so that this compiles it. A second failure is no damage of the cache.
                _log.warning("%s; it is compiled again", error)
                return load()

        return load_or_rebuild


def _hash_file(library: Path) -> Path:
    return library.with_name(library.name + ".sha256")


def _hash(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _is_unchanged(library: Path) -> bool:
    noted = _hash_file(library)
    return _hash(library) == noted.read_text() if noted.exists() else _is_whole(library)


def _is_whole(library: Path) -> bool:
    """Whether an ELF file is as long as its header says: loading a shorter one ends the process by a signal.

    The table of sections, which its header places, comes last in what linkers write.
    """
    content = library.read_bytes()
    if content[:5] != b"\x7fELF\x02":
        return True  # of another format or class: for the loader to say
    place = int.from_bytes(content[40:48], "little")
    size, count = int.from_bytes(content[58:60], "little"), int.from_bytes(content[60:62], "little")
    return place + size * count <= len(content)


def _note_hash(library: Path) -> None:
    if not _hash_file(library).exists():
        write_atomic(str(_hash_file(library)), _hash(library))
