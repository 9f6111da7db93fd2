# SPDX-License-Identifier: BSD-3-Clause
"""The Python half of each driver that comes with the package."""

from pathlib import Path

__all__ = ["library_path"]


def library_path(name: str) -> Path:
    """Return the path where the build puts a driver's library."""
    return Path(__file__).parent / "lib" / f"libob_{name}.so"
