# SPDX-License-Identifier: BSD-3-Clause
"""The making of a pack: the calls of kernels/disk/calls.py run on a device, and their plans become the pack's files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from torch_outboard import _C
from torch_outboard.device.devices import get_device_properties
from torch_outboard.kernels.disk.calls import PackCall, Samples
from torch_outboard.kernels.disk.files import folders_in, is_name, versions_in
from torch_outboard.kernels.disk.packs import ABOUT, describe
from torch_outboard.kernels.disk.removal import remove_plans

__all__ = ["run_calls", "write_pack"]


def run_calls(
    index: int, calls: Sequence[tuple[str, PackCall, torch.dtype]], tell: Callable[[str], None]
) -> Iterator[tuple[str, Exception]]:
    """Run calls that `chosen_calls` returned, and yield the failed ones. `tell` gets each label before its call."""
    device = torch.device(_C.driver_name(), index)
    machine = get_device_properties(index).machine
    for label, call, dtype in calls:
        tell(label)
        try:
            call.run(Samples(device, dtype, machine))
            torch.accelerator.synchronize(device)
        except Exception as error:  # noqa: BLE001 - the caller reports it
            yield label, error


def write_pack(source: Path, folder: Path, device: int) -> int:
    """Build a pack of the plans in a store's folder, and return their number. The pack replaces an older one.

    Whatever the owner's umask is, others may read the pack but not write it. Otherwise the pack would not be used.
    """
    (folder / ABOUT).unlink(missing_ok=True)
    if folder.is_dir():
        remove_plans(folder)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for path in (one for version in versions_in(source) for inner in folders_in(version) for one in inner.iterdir()):
        if is_name(path.name):
            target = folder / path.parent.name
            target.mkdir(exist_ok=True)
            shutil.copyfile(path, target / path.name)
            (target / path.name).chmod(0o644)
            target.chmod(0o755)
            count += 1
    # Last: without it the folder is no pack.
    about = json.dumps({**describe(device), "plans": count}, indent=1) + "\n"
    unfinished = folder / f"{ABOUT}.{os.getpid()}"
    unfinished.write_text(about)
    unfinished.chmod(0o644)
    unfinished.replace(folder / ABOUT)
    folder.chmod(folder.stat().st_mode & ~0o022)
    return count
