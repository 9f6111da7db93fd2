# SPDX-License-Identifier: BSD-3-Clause
"""The Python half of each driver that comes with the package."""

import os
import site
import sysconfig
from pathlib import Path

__all__ = ["library_path", "package_folders"]


def library_path(name: str) -> Path:
    """Return the path where the build puts a driver's library."""
    return Path(__file__).parent / "lib" / f"libob_{name}.so"


def package_folders() -> list[Path]:
    """Return the folders that packages are installed into: torch's first, because vendors' packages come with torch.

    `sys.path` may name the process's current folder. A library in that folder is not loaded.
    """
    import torch  # not at the top: `outboard info` loads the class without torch

    paths = sysconfig.get_paths()
    found = [str(Path(torch.__file__).parent.parent), *site.getsitepackages(), paths["purelib"], paths["platlib"]]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return [Path(one) for one in dict.fromkeys(found) if os.path.isabs(one)]
