# SPDX-License-Identifier: BSD-3-Clause
"""Compiled kernels, and the fastest configuration per chip, stored on disk among Inductor's files."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torch_outboard._errors import NotSupportedError
from torch_outboard._private_files import (
    make_private_folders,
    parse_checked,
    printable_path,
    read_private,
    reason_of,
    with_checksum,
    write_atomically,
)
from torch_outboard._triton import TritonTarget
from torch_outboard._version import __version__
from torch_outboard.compile.triton.binary import Binaries, Binary, load_backend

__all__ = ["Choice", "Store"]

_log = logging.getLogger(__name__)


class Store:
    """The files of a kernel. The first line of each file is a hash of its content.

    A file that is damaged, unreadable or writable by other users counts as missing. If Inductor's caches are off,
    nothing is read or written.

    Attributes
    ----------
    choice : Choice
        The fastest configuration measured on a chip.
    """

    def __init__(self, name: str, source: str, target: TritonTarget, chip: str) -> None:
        parts = (name, source, repr(target), *_versions(target))
        self._binaries = _file(parts)
        self.choice = Choice(parts, chip)

    def binaries(self) -> Binaries | None:
        """Return the stored binaries, or None if there are none or the file is damaged."""
        content = _read(self._binaries, _names_of(Binaries))
        if content is None:
            return None
        try:
            return _binaries_of(content)
        except (KeyError, TypeError, ValueError):
            _warn_damaged(self._binaries)
            return None

    def keep_binaries(self, binaries: Binaries) -> None:
        content = dataclasses.asdict(binaries)
        for variant in content["variants"]:
            variant["code"] = base64.b64encode(variant["code"]).decode()
        _write(self._binaries, content)


class Choice:
    """The name of the fastest of several choices on a chip. `among` holds everything else that affects the result."""

    def __init__(self, among: Sequence[str], chip: str) -> None:
        self._file = _file((*among, "on", chip))

    def read(self) -> str | None:
        """Return the name, or None if nothing was measured or the file is damaged."""
        content = _read(self._file, ("choice",))
        if content is not None and not isinstance(content["choice"], str):
            _warn_damaged(self._file)
            return None
        return None if content is None else content["choice"]

    def write(self, name: str) -> None:
        """Store the name for later processes."""
        _write(self._file, {"choice": name})


@functools.cache
def _versions(target: TritonTarget) -> tuple[str, ...]:
    from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path
    from torch._inductor.runtime.triton_compat import triton_key

    # Sets the variable with which Inductor's workers find torch's own assembler, if torch has one.
    # The back end's hash contains the assembler's version.
    _set_triton_ptxas_path()
    backend = load_backend(target)
    try:
        return __version__, torch.__version__, triton_key(), backend.hash()
    except (OSError, RuntimeError) as error:
        raise NotSupportedError(
            f"Triton's back end {target.backend!r} can't compile for {target.arch!r}: {error}. Install the tools "
            "that it runs, such as an assembler"
        ) from error


def _file(parts: Sequence[str]) -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return Path(cache_dir()) / "outboard_triton" / key[:2] / key


def _is_off() -> bool:
    from torch._inductor import config

    return bool(config.force_disable_caches)


def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _binaries_of(content: dict[str, Any]) -> Binaries:
    """Return the stored binaries. Raise KeyError, TypeError or ValueError if the content is malformed."""
    variants = tuple(
        Binary(
            **{
                **variant,
                "code": base64.b64decode(variant["code"]),
                "grid": tuple(variant["grid"]),
                "scratch": tuple(tuple(pair) for pair in variant["scratch"]),
            }
        )
        for variant in content.pop("variants")
    )
    return Binaries(**{name: tuple(value) for name, value in content.items()}, variants=variants)


def _read(path: Path, names: Sequence[str]) -> dict[str, Any] | None:
    if _is_off():
        return None
    try:
        content = read_private(path)
    except OSError as error:
        _log.warning("a compiled kernel can't be used (%s) and is rebuilt", reason_of(error))
        return None
    fields = None if content is None else parse_checked(content, names)
    if content is not None and fields is None:
        _warn_damaged(path)
    return fields


def _warn_damaged(path: Path) -> None:
    _log.warning("the compiled kernel %s has changed on disk and is rebuilt", printable_path(path))


def _write(path: Path, content: object) -> None:
    if _is_off():
        return
    try:
        make_private_folders(path.parent.parent, path.parent)
        write_atomically(path, with_checksum(json.dumps(content).encode()))
    except OSError as error:
        _warn_not_stored(reason_of(error))


@functools.cache
def _warn_not_stored(why: str) -> None:
    _log.warning("compiled kernels can't be stored: %s; set TORCHINDUCTOR_CACHE_DIR to another folder", why)
