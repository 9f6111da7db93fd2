# SPDX-License-Identifier: BSD-3-Clause
"""The schedules that were chosen for a device, by measuring: read from disk, where `outboard kernels tune` keeps them.

A file for each device, by who generates for it, its name and its architecture, beside the folders of plans. It is good
for the code that it was measured with, this package's, the generator's and the driver's; else it is stale. What is
damaged, stale or not the user's alone is told in the log, and schedules are those that are taken untuned.
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

from torch_outboard._sealed import (
    make_private_folders,
    parsed,
    read_private,
    reason_of,
    sealed,
    write_whole,
)
from torch_outboard.compile.generators import generators
from torch_outboard.kernels.disk.key import code_hash, kind_of
from torch_outboard.kernels.disk.store import default_folder
from torch_outboard.kernels.tune.schedules import Schedule, default_of, is_schedule

__all__ = ["Tuned", "read", "remove", "schedules_of", "tables_in", "told", "trying", "write"]

_log = logging.getLogger(__name__)

_FOLDER = "schedules"
_NAMES = ("device", "with", "schedules")
_CODE = "code of this package"
_ANEW = "outboard kernels tune makes it anew"


@dataclass(frozen=True)
class Tuned:
    """A device's table of schedules.

    Attributes
    ----------
    schedules : mapping
        By names as "product.tiles float32"; of any other it is the one that is taken untuned.
    path : Path or None
        Where it lies; None where there is no table.
    obstacle : str
        Why a table that is there isn't used; "" if it is.
    device : mapping
        What the table says of its device.
    """

    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    path: Path | None = None
    obstacle: str = ""
    device: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> Schedule:
        return self.schedules.get(name) or default_of(name)

    @functools.cached_property
    def digest(self) -> str:
        """What plans with other schedules than the untuned ones depend on; "" if there are none."""
        others = {name: one for name, one in self.schedules.items() if one != default_of(name)}
        return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()[:16] if others else ""


_NONE = Tuned()
# What is tried out in the place of a device's table.
_tried: Tuned | None = None


def schedules_of(device: int) -> Tuned:
    """Gives the schedules of a device's kernels. The table is read when this is first asked."""
    return _tried or _kept(device)


@contextlib.contextmanager
def trying(schedules: Mapping[str, Schedule]) -> Iterator[None]:
    """Has plans that are built within its block take these schedules."""
    global _tried
    _tried = Tuned(schedules)
    try:
        yield
    finally:
        _tried = None


@functools.cache
def _kept(device: int) -> Tuned:
    folder = default_folder()
    if folder is None:
        return _NONE
    found = read(folder, device)
    if found.obstacle:
        _log.warning("the tuned schedules in %s are not used: %s", found.path, found.obstacle)
    return found


def read(folder: Path, device: int) -> Tuned:
    """Gives a device's table, or one without schedules, which says why."""
    return _read(_path(folder, device), _measured_with(device))


def tables_in(folder: Path) -> list[Tuned]:
    """Gives the tables of all devices, as far as this package's code tells whether they are used."""
    return [_read(path, {_CODE: code_hash()}) for path in sorted((folder / _FOLDER).glob("*.json"))]


def told(device: int) -> str | None:
    """Says where a device's table lies, and why it isn't used if it isn't; None for none."""
    if not generators().has_eager:
        return None
    found = schedules_of(device)
    if found.path is None:
        return None
    return f"not those in {found.path}: {found.obstacle}" if found.obstacle else str(found.path)


def write(folder: Path, device: int, schedules: Mapping[str, Schedule]) -> Path:
    """Keep the schedules of a device, for later processes. PermissionError for a folder of another user's."""
    path = _path(folder, device)
    make_private_folders(folder, path.parent)
    content = json.dumps({"device": _about(device), "with": _measured_with(device), "schedules": schedules}, indent=1)
    write_whole(path, sealed(content.encode()))
    return path


def remove(folder: Path, device: int) -> bool:
    """Removes a device's table, and says whether there was one."""
    path = _path(folder, device)
    is_there = path.exists()
    path.unlink(missing_ok=True)
    return is_there


def _about(device: int) -> dict[str, str]:
    from torch_outboard.device.devices import get_device_properties

    properties = get_device_properties(device)
    kind = kind_of(device)
    return {
        "name": properties.name,
        "architecture": properties.architecture,
        "machine": kind["machine"],
        "generator": kind["generator"],
    }


def _measured_with(device: int) -> dict[str, str]:
    from torch_outboard.device.devices import get_device_properties

    return {
        _CODE: code_hash(),
        "generator": kind_of(device)["generated_by"],
        "driver version": get_device_properties(device).driver_version,
    }


def _is_table(found: Mapping[str, Any]) -> bool:
    """Whether all parts are mappings, and what is known of the device is text."""
    texts = found["device"] if isinstance(found["device"], dict) else {}
    are_named = {"name", "machine"} <= texts.keys() and all(isinstance(one, str) for one in texts.values())
    return are_named and isinstance(found["with"], dict) and isinstance(found["schedules"], dict)


def _path(folder: Path, device: int) -> Path:
    identity = hashlib.sha256(json.dumps(_about(device), sort_keys=True).encode()).hexdigest()[:32]
    return folder / _FOLDER / f"{identity}.json"


def _read(path: Path, measured_with: Mapping[str, str]) -> Tuned:
    try:
        content = read_private(path)
    except OSError as error:
        return Tuned(path=path, obstacle=reason_of(error))
    if content is None:
        return _NONE
    found = parsed(content, _NAMES)
    if found is None or not _is_table(found):
        return Tuned(path=path, obstacle=f"the file is damaged; {_ANEW}")
    device, schedules = found["device"], found["schedules"]
    differing = [name for name, value in measured_with.items() if found["with"].get(name) != value]
    if differing:
        obstacle = f"they were measured with another {' and another '.join(differing)}; {_ANEW}"
        return Tuned(path=path, obstacle=obstacle, device=device)
    if not all(is_schedule(name, one) for name, one in schedules.items()):
        return Tuned(path=path, obstacle=f"it has others than there are to choose from; {_ANEW}", device=device)
    return Tuned(schedules, path, device=device)
