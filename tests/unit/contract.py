# SPDX-License-Identifier: BSD-3-Clause
"""The contract as data, read from the text of driver.h."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import torch_outboard

ROOT = Path(__file__).resolve().parent.parent.parent
# As the build reads it.
_READER = runpy.run_path(str(ROOT / "cmake" / "contract.py"))


def header() -> str:
    """Return the text of driver.h: the installed one, or the source tree's."""
    installed = Path(torch_outboard.__file__).parent / "include" / "torch_outboard" / "driver.h"
    path = installed if installed.is_file() else ROOT / "include" / "torch_outboard" / "driver.h"
    return path.read_text(encoding="utf-8")


def enumerators(prefix: str) -> dict[str, int]:
    """Return the enumerators that begin with `prefix`, without it."""
    pairs = re.findall(rf"\b{prefix}([A-Z0-9_]+) = (\d+)u?\b", header())
    return {name: int(value) for name, value in pairs}


def table_entries() -> tuple[list[str], list[str]]:
    """Return the required and the optional entries of ob_driver, in the table's order."""
    return _READER["entries"](header())  # type: ignore[no-any-return]


def struct_fields(name: str) -> list[str]:
    """Return the fields of a struct of driver.h, in order."""
    return _READER["fields"](header(), name)  # type: ignore[no-any-return]


def simulated_entries() -> list[str]:
    """Return the entries of the sim driver that can fail."""
    sources = sorted((ROOT / "drivers" / "sim").glob("*.cpp"))
    names = [name for path in sources for name in re.findall(r"table->(\w+) =", path.read_text(encoding="utf-8"))]
    return [name for name in names if name not in ("last_error", "destroy")]
