# SPDX-License-Identifier: BSD-3-Clause
"""The tuned schedules of a device, which `outboard kernels tune` stores on disk.

Each device has a file next to the folders of plans, named after the device's generator, name and architecture. A file
is valid only for the code with which it was measured: this package, the generator and the driver. If a file is damaged,
stale or writable by others, the log reports it and the untuned schedules are used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_outboard._private_files import (
    make_private_folders,
    parse_checked,
    read_private,
    reason_of,
    with_checksum,
    write_atomically,
)
from torch_outboard.compile.generators import generators
from torch_outboard.device.devices import get_device_properties
from torch_outboard.kernels.disk.key import code_hash, kind_of
from torch_outboard.kernels.disk.store import default_folder
from torch_outboard.kernels.tune.schedules import Schedule, default_of, is_schedule

__all__ = ["ScheduleTable", "read", "remove", "schedules_of", "tables_in", "describe_table", "use_schedules", "write"]

_log = logging.getLogger(__name__)

_FOLDER = "schedules"
_NAMES = ("device", "with", "schedules")
_CODE = "code of this package"
_HOW_TO_REBUILD = "`outboard kernels tune` rebuilds it"


@dataclass(frozen=True)
class ScheduleTable:
    """A device's table of schedules.

    Attributes
    ----------
    schedules : mapping
        By names such as "product.tiles float32"; other names use the untuned schedule.
    path : Path or None
        The file; None if there is no table.
    obstacle : str
        Why an existing table is not used; "" if it is used.
    device : mapping
        The table's description of its device.
    """

    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    path: Path | None = None
    obstacle: str = ""
    device: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> Schedule:
        return self.schedules.get(name) or default_of(name)

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the tuned schedules, part of the keys of their plans; "" if all schedules are untuned."""
        others = {name: schedule for name, schedule in self.schedules.items() if schedule != default_of(name)}
        return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()[:16] if others else ""


_EMPTY_TABLE = ScheduleTable()
# The schedules under trial, which replace the device's table.
_override: ScheduleTable | None = None


def schedules_of(device: int) -> ScheduleTable:
    """Return the schedules of a device's kernels. The first call reads the table from disk."""
    return _override or _stored_table(device)


@contextlib.contextmanager
def use_schedules(schedules: Mapping[str, Schedule]) -> Iterator[None]:
    """Build plans within the block with these schedules."""
    global _override
    _override = ScheduleTable(schedules)
    try:
        yield
    finally:
        _override = None


@functools.cache
def _stored_table(device: int) -> ScheduleTable:
    folder = default_folder()
    if folder is None:
        return _EMPTY_TABLE
    tuned = read(folder, device)
    if tuned.obstacle:
        _log.warning("the tuned schedules in %s are not used: %s", tuned.path, tuned.obstacle)
    return tuned


def read(folder: Path, device: int) -> ScheduleTable:
    """Return a device's table, or a table without schedules that states the reason."""
    return _read(_path(folder, device), _measured_with(device))


def tables_in(folder: Path) -> list[ScheduleTable]:
    """Return the tables of all devices, checked against this package's code only."""
    return [_read(path, {_CODE: code_hash()}) for path in sorted((folder / _FOLDER).glob("*.json"))]


def describe_table(device: int) -> str | None:
    """Return the place of a device's table, or why it is not used; None if there is no table."""
    if not generators().has_eager:
        return None
    tuned = schedules_of(device)
    if tuned.path is None:
        return None
    return f"not those in {tuned.path}: {tuned.obstacle}" if tuned.obstacle else str(tuned.path)


def write(folder: Path, device: int, schedules: Mapping[str, Schedule]) -> Path:
    """Write a device's schedules, for later processes.

    Raises PermissionError if another user owns the folder.
    """
    path = _path(folder, device)
    make_private_folders(folder, path.parent)
    content = json.dumps({"device": _about(device), "with": _measured_with(device), "schedules": schedules}, indent=1)
    write_atomically(path, with_checksum(content.encode()))
    return path


def remove(folder: Path, device: int) -> bool:
    """Remove a device's table, and return whether there was one."""
    path = _path(folder, device)
    is_there = path.exists()
    path.unlink(missing_ok=True)
    return is_there


def _about(device: int) -> dict[str, str]:
    properties = get_device_properties(device)
    kind = kind_of(device)
    return {
        "name": properties.name,
        "architecture": properties.architecture,
        "machine": kind["machine"],
        "generator": kind["generator"],
    }


def _measured_with(device: int) -> dict[str, str]:
    return {
        _CODE: code_hash(),
        "generator": kind_of(device)["generated_by"],
        "driver version": get_device_properties(device).driver_version,
    }


def _is_table(table: Mapping[str, Any]) -> bool:
    """Return True if all parts are mappings, and the description of the device is text."""
    texts = table["device"] if isinstance(table["device"], dict) else {}
    are_named = {"name", "machine"} <= texts.keys() and all(isinstance(text, str) for text in texts.values())
    return are_named and isinstance(table["with"], dict) and isinstance(table["schedules"], dict)


def _path(folder: Path, device: int) -> Path:
    identity = hashlib.sha256(json.dumps(_about(device), sort_keys=True).encode()).hexdigest()[:32]
    return folder / _FOLDER / f"{identity}.json"


def _read(path: Path, measured_with: Mapping[str, str]) -> ScheduleTable:
    try:
        content = read_private(path)
    except OSError as error:
        return ScheduleTable(path=path, obstacle=reason_of(error))
    if content is None:
        return _EMPTY_TABLE
    table = parse_checked(content, _NAMES)
    if table is None or not _is_table(table):
        return ScheduleTable(path=path, obstacle=f"the file is damaged; {_HOW_TO_REBUILD}")
    device, schedules = table["device"], table["schedules"]
    differing = [name for name, value in measured_with.items() if table["with"].get(name) != value]
    if differing:
        obstacle = f"they were measured with another {' and another '.join(differing)}; {_HOW_TO_REBUILD}"
        return ScheduleTable(path=path, obstacle=obstacle, device=device)
    if not all(is_schedule(name, schedule) for name, schedule in schedules.items()):
        return ScheduleTable(path=path, obstacle=f"it contains unknown schedules; {_HOW_TO_REBUILD}", device=device)
    return ScheduleTable(schedules, path, device=device)
