# SPDX-License-Identifier: BSD-3-Clause
"""The contract as data, read from the text of driver.h."""

from __future__ import annotations

import re
from pathlib import Path

import torch_outboard

ROOT = Path(__file__).resolve().parent.parent.parent


def header() -> str:
    """Return the text of driver.h: the installed one, or the source tree's."""
    installed = Path(torch_outboard.__file__).parent / "include" / "torch_outboard" / "driver.h"
    path = installed if installed.is_file() else ROOT / "include" / "torch_outboard" / "driver.h"
    return path.read_text(encoding="utf-8")


def enumerators(prefix: str) -> dict[str, int]:
    """Return the enumerators that begin with `prefix`, without it."""
    found = re.findall(rf"\b{prefix}([A-Z0-9_]+) = (\d+)u?\b", header())
    return {name: int(value) for name, value in found}


def table_entries() -> tuple[list[str], list[str]]:
    """Return the required and the optional entries of ob_driver, in the table's order."""
    table = header().split("typedef struct ob_driver {")[1].split("} ob_driver;")[0]
    required, optional = table.split("== Optional")
    pattern = re.compile(r"\(\*(\w+)\)\(void\* self")
    return pattern.findall(required), pattern.findall(optional)


def struct_fields(name: str) -> list[str]:
    """Return the fields of a struct of driver.h, in order."""
    body = header().split(f"typedef struct {name} {{")[1].split(f"}} {name};")[0]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    return re.findall(r"(\w+)(?:\[\w+\])?;", body)
