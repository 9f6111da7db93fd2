# SPDX-License-Identifier: BSD-3-Clause
"""Writes the lists of what driver.h declares, for code that does the same for each of them.

  python contract.py <include/torch_outboard/driver.h> <file>

The header is C of one style, so lines are enough to read it. The lists are macros, `OB_LIST(X) X(one) X(other)`. All of
these are in the order of the header: entries, those that are required, fields of the properties, statuses.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HEAD = "// Written by cmake/contract.py when building. Do not edit.\n#pragma once\n"


def struct_body(header: str, name: str) -> str:
    """Return what stands within a struct, with its comments."""
    return header.split(f"typedef struct {name} {{")[1].split(f"}} {name};")[0]


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def entries(header: str) -> tuple[list[str], list[str]]:
    """Return the required and the optional entries of ob_driver."""
    required, optional = struct_body(header, "ob_driver").split("== Optional")
    entry = re.compile(r"\(\*(\w+)\)\(void\* self")
    return entry.findall(required), entry.findall(optional)


def fields(header: str, struct: str) -> list[str]:
    """Return the fields of a struct."""
    return re.findall(r"(\w+)(?:\[\w+\])?;", without_comments(struct_body(header, struct)))


def statuses(header: str) -> list[str]:
    """Return the names of status codes, without OB_."""
    return re.findall(r"OB_(\w+) = \d+", header.split("typedef int32_t ob_status;")[1].split("};")[0])


def lists(header: str) -> dict[str, list[str]]:
    """Return the lists by the names of their macros."""
    required, optional = entries(header)
    properties = [name for name in fields(header, "ob_device_properties") if name not in ("struct_size", "reserved")]
    found = {
        "OB_ENTRIES": [*required, *optional],
        "OB_REQUIRED_ENTRIES": required,
        "OB_PROPERTIES": properties,
        "OB_STATUSES": statuses(header),
    }
    if empty := [name for name, members in found.items() if not members]:
        sys.exit(
            f"driver.h is written in another style than cmake/contract.py reads: {', '.join(empty)} would be empty"
        )
    return found


def main(source: str, target: str) -> None:
    found = lists(Path(source).read_text(encoding="utf-8"))
    macros = [
        f"#define {name}(X) {' '.join(f'X({member})' for member in members)}\n" for name, members in found.items()
    ]
    path, wanted = Path(target), HEAD + "".join(macros)
    # Written only when it differs, so that a changed comment compiles nothing again.
    if not path.is_file() or path.read_text(encoding="utf-8") != wanted:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
