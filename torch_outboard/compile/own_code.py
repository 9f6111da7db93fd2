# SPDX-License-Identifier: BSD-3-Clause
"""A hash of this package's own code, for the cache keys of generated code. The hash needs no device."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from torch_outboard import _C
from torch_outboard._extension import include_paths

__all__ = ["own_code"]


def own_code(*more: Path) -> str:
    """Return a hash of all files on which generated code depends, including the folders `more`.

    The version alone is not enough, because an installation may be a modified checkout. Each process that calls a
    generated operator hashes about a hundred files. Avoiding pathlib's walk and buffered reads takes a third of the
    time.
    """
    code = hashlib.sha256()
    headers = Path(include_paths()[0]).glob("torch_outboard/compiled*.h")
    own = Path(__file__).parent
    folders = (own, own.parent / "codegen", *more)
    for path in sorted([*(path for folder in folders for path in _files(os.fspath(folder))), *map(os.fspath, headers)]):
        with open(path, "rb", buffering=0) as file:
            code.update(file.readall())
    code.update(repr(_C.kernel_traits()).encode())  # the book's traits; this package must not import the book itself
    return code.hexdigest()[:16]


def _files(folder: str) -> Iterator[str]:
    """Yield all files below a folder, except bytecode."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            elif not entry.name.endswith(".pyc"):
                yield entry.path
