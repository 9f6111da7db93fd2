# SPDX-License-Identifier: BSD-3-Clause
"""Packs: plans and programs that come with a driver's package, so that its users need not build them.

A pack records the versions of torch and of this package's code for which it was built, and the generators of its plans.
For other versions it is stale. A pack that is stale or damaged, or that other users may have written, is not used, and
the log reports this once. Its plans are valid for the kinds of machines in their keys. Its programs are valid for all
chips of an architecture.

The owner of a pack must be the user, root, or the owner of the module that names the pack, and no other user may be
able to write it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from torch_outboard import _C
from torch_outboard._private_files import absolute_path, printable_path, reason_of
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.driver import Driver
from torch_outboard.kernels.disk.files import Answer
from torch_outboard.kernels.disk.key import code_hash, kind_of

if TYPE_CHECKING:  # this module imports sqlite3, which processes without packs do not need and some Pythons lack
    from torch_outboard.kernels.disk.pack_file import PackFile

__all__ = [
    "VARIABLE",
    "Pack",
    "Packs",
    "check_target",
    "own_kernels",
    "owner_of",
    "packs_of",
    "read_pack",
    "versions",
]

_log = logging.getLogger(__name__)
_Read = TypeVar("_Read")

VARIABLE = "OUTBOARD_KERNEL_PACKS"
_OF_GENERATOR = ("generator", "generated_by")


@dataclass(frozen=True)
class Pack:
    """A pack, and the reason why it is not used ("" if it is used). The file is None if it cannot be read."""

    path: Path
    file: PackFile | None
    obstacle: str

    @property
    def about(self) -> Mapping[str, Any]:
        return {} if self.file is None else self.file.about


def check_target(path: Path) -> None:
    """Raise FileExistsError for an existing file or folder that is not a pack."""
    from torch_outboard.kernels.disk.pack_file import is_pack

    if (path.exists() or path.is_symlink()) and not is_pack(path):
        raise FileExistsError(f"{printable_path(path)} exists and is not a pack: choose another file")


def versions() -> dict[str, str]:
    """Return the versions for which a pack made now is valid."""
    return {
        # Wheels of one release have the same commit for all accelerators.
        "torch": torch.__version__.partition("+")[0],
        "torch_commit": torch.version.git_version or "",
        "code": code_hash(),
    }


def packs_of(driver: type[Driver] | None) -> list[Path]:
    """Return the files of packs: the files named by the variable OUTBOARD_KERNEL_PACKS, else the driver's.

    A driver's relative path starts at the folder of the module that names it. A relative path in the variable starts at
    the working directory when this package was imported. If the module has no file, its relative paths are reported and
    skipped.
    """
    if (paths := os.environ.get(VARIABLE)) is not None:
        return [absolute_path(path) for path in paths.split(os.pathsep) if path]
    if driver is None:
        return []
    module = _module_file(driver)
    pack_paths = [Path(pack) if module is None else module.parent / pack for pack in driver.kernel_packs]
    for path in pack_paths:
        if not path.is_absolute():
            _log.warning(
                "the pack of kernels in %s is not used: its path is relative, but the module of %s has no file; use an "
                "absolute path",
                printable_path(path),
                driver.__qualname__,
            )
    return [path for path in pack_paths if path.is_absolute()]


def owner_of(driver: type[Driver] | None) -> int:
    """Return the user whose packs are trusted because the driver's code is trusted, or -1 for no such user."""
    module = None if driver is None or VARIABLE in os.environ else _module_file(driver)
    return -1 if module is None or not module.exists() else module.stat().st_uid


def _module_file(driver: type[Driver]) -> Path | None:
    """Return the file of the module that names the driver's packs."""
    owner = next(base for base in driver.__mro__ if "kernel_packs" in vars(base))
    path = getattr(sys.modules.get(owner.__module__), "__file__", None)
    return absolute_path(path) if path else None


def own_kernels(driver: Driver) -> list[KernelRecord]:
    """Return a record for each of the driver's own programs, which no plan has."""
    programs = driver.own_programs()
    return [KernelRecord("", language, text, options, "", "", ()) for language, text, options in programs]


def _runnable(driver: Driver | None, device: int) -> tuple[str, ...]:
    """Return the architectures whose programs a device runs, best first."""
    from torch_outboard.device.devices import get_device_properties

    own = get_device_properties(device).architecture
    return (own,) if driver is None or not own else tuple(driver.compatible_architectures(own))


def read_pack(path: Path, kind: Mapping[str, str] | None = None, trusted: int = -1) -> Pack:
    """Read a pack and check that it is valid for this process, and for a device's generator if its kind is given.

    The machine is not checked, because the plans' keys contain it and the pack may be for another device of the driver.
    """
    try:
        from torch_outboard.kernels.disk.pack_file import DamagedPack, PackFile
    except ImportError as error:
        return Pack(path, None, f"this Python can't read it, {error}")
    try:
        file = PackFile(path, trusted)
        differing = [name for name, value in versions().items() if file.about[name] != value]
        kinds = [device["kind"] for device in file.about["devices"]]
    except OSError as error:
        return Pack(path, None, f"it can't be read, {reason_of(error)}")
    except (DamagedPack, KeyError, TypeError) as error:
        return Pack(path, None, f"it can't be read, {error}")
    if kind is not None and not any(
        all(device_kind.get(name) == kind[name] for name in _OF_GENERATOR) for device_kind in kinds
    ):
        differing.append("generator")
    obstacle = f"it was made for another {' and another '.join(differing)}" if differing else ""
    return Pack(path, file, obstacle)


class Packs:
    """A list of packs, which are opened at the first request for a plan. Threads may share the object.

    Attributes
    ----------
    loaded : int
        The number of answers from packs.
    """

    def __init__(self, paths: Iterable[Path], driver: Driver | None = None, trusted: int = -1) -> None:
        self.loaded = 0
        self._driver = driver
        self._trusted = trusted
        self._paths = list(paths)
        self._used: list[PackFile] | None = None
        self._lock = threading.Lock()
        self._dropped: set[tuple[str, str]] = set()
        self._architectures: dict[int, tuple[str, ...]] = {}
        self._provided: set[int] = set()  # devices whose own programs the core has

    def __bool__(self) -> bool:
        return bool(self._paths)

    def plans(self, key: str, device: int) -> list[Answer]:
        """Return the plans of a class, and its refusals."""
        if not self._paths:
            return []
        with self._lock:
            self._provide_own_programs(device)
            answers = self._ask(self._usable(device), lambda file: file.plans(key))
            all_answers = [answer for of_pack in answers for answer in of_pack]
            kept = [answer for answer in all_answers if (key, answer.text) not in self._dropped]
            self.loaded += len(kept)
        return kept

    def program(self, kernel: KernelRecord, device: int) -> bytes:
        """Return the program of a plan's kernel for a device, or b"" if no pack has it."""
        with self._lock:
            return self._program(kernel, device)

    def _program(self, kernel: KernelRecord, device: int) -> bytes:
        architectures = self._architectures_of(device)
        found = self._ask(self._usable(device), lambda file: file.program(kernel, architectures))
        return next(filter(None, found), b"")

    def _provide_own_programs(self, device: int) -> None:
        """Pass the driver's own programs to the core, where the driver's library recalls them."""
        if device in self._provided or self._driver is None:
            return
        self._provided.add(device)
        for kernel in own_kernels(self._driver) if self._usable(device) else ():
            if program := self._program(kernel, device):
                _C.provide_kept(device, kernel.code, program)

    def drop(self, key: str, text: str, why: str) -> None:
        """Stop returning the plan of a class with this text.

        The pack's file keeps the plan, because packs are never written.
        """
        with self._lock:
            self._dropped.add((key, text))
            having = self._ask(self._used or [], lambda file: file.path if file.has_plan(key, text) else None)
        for path in filter(None, having):
            _log.warning("a plan of the pack %s can't be used (%s); it is built", printable_path(path), why)

    def _architectures_of(self, device: int) -> tuple[str, ...]:
        if device not in self._architectures:
            self._architectures[device] = _runnable(self._driver, device)
        return self._architectures[device]

    def _ask(self, files: list[PackFile], ask: Callable[[PackFile], _Read]) -> list[_Read]:
        """Return the answers from all packs. A pack that turns out to be damaged is removed from the list."""
        if not files:
            return []
        from torch_outboard.kernels.disk.pack_file import DamagedPack

        results = []
        for file in list(files):
            try:
                results.append(ask(file))
            except DamagedPack as error:
                files.remove(file)
                _log.warning("the pack of kernels in %s is no longer used: %s", printable_path(file.path), error)
        return results

    def _usable(self, device: int) -> list[PackFile]:
        if self._used is None:
            read = [read_pack(path, kind_of(device), self._trusted) for path in self._paths]
            for pack in read:
                if pack.obstacle:
                    _log.warning("the pack of kernels in %s is not used: %s", printable_path(pack.path), pack.obstacle)
                elif pack.file is not None:
                    self._log_missing_programs(pack.file, device)
            self._used = [pack.file for pack in read if pack.file is not None and not pack.obstacle]
        return self._used

    def _log_missing_programs(self, file: PackFile, device: int) -> None:
        having = [device["architecture"] for device in file.about["devices"] if device["architecture"]]
        own = self._architectures_of(device)
        if having and not set(own) & set(having):
            _log.warning(
                "the pack of kernels in %s has programs for %s, but none for %s: each is compiled at its first use",
                printable_path(file.path),
                ", ".join(having),
                own[0] if own else "this device, whose driver names no architecture",
            )
