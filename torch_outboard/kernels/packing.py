# SPDX-License-Identifier: BSD-3-Clause
"""Making a pack: the calls of kernels/calls.py run on a device, and what was built for them becomes its files."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from torch_outboard import _C
from torch_outboard.device.devices import get_device_properties
from torch_outboard.kernels.calls import CALLS, Samples
from torch_outboard.kernels.packs import ABOUT, describe

__all__ = ["run_calls", "write_pack"]

_FOLDER = re.compile("[0-9a-f]{2}")


def run_calls(
    index: int, only: str, dtypes: Sequence[torch.dtype], tell: Callable[[str], None]
) -> Iterator[tuple[str, Exception]]:
    """Runs the calls whose names `only` is found in, and yields those that failed.

    Each runs with its dtypes that are among `dtypes`, `tell` is given its name before.
    """
    device = torch.device(_C.driver_name(), index)
    machine = get_device_properties(index).machine
    for name, call in CALLS.items():
        for dtype in call.dtypes:
            label = f"{name} {str(dtype).removeprefix('torch.')}"
            if dtype not in dtypes or not re.search(only, label):
                continue
            tell(label)
            try:
                call.run(Samples(device, dtype, machine))
                torch.accelerator.synchronize(device)
            except Exception as error:
                yield label, error


def _remove_files(folder: Path) -> None:
    """Removes the files of a pack, of which others may lie beside them."""
    (folder / ABOUT).unlink(missing_ok=True)
    if folder.is_dir():
        for one in folder.iterdir():
            if one.is_dir() and _FOLDER.fullmatch(one.name):
                shutil.rmtree(one)


def write_pack(source: Path, folder: Path, device: int) -> int:
    """Makes a pack of the plans in a store's folder, and gives how many they are. An older pack goes."""
    _remove_files(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(source.glob("*/??/*.*"))
    for path in files:
        target = folder / path.parent.name / path.name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)  # with the mode that the user's new files have, not that of private ones
    # Last: without it the folder is no pack.
    about = json.dumps({**describe(device), "plans": len(files)}, indent=1) + "\n"
    unfinished = folder / f"{ABOUT}.{os.getpid()}"
    unfinished.write_text(about)
    unfinished.replace(folder / ABOUT)
    return len(files)
