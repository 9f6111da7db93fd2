# SPDX-License-Identifier: BSD-3-Clause
"""The drivers that `outboard new` copies: compiled and tested ones, renamed.

They are files of the source tree, which the build installs beside this module. A replacement that finds nothing is an
error, so a changed skeleton can't quietly keep its own name.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["contract_header", "skeleton"]

_HERE = Path(__file__).resolve().parent
_SOURCE = _HERE.parent.parent

# The file, and what is replaced in it. {name} is the driver's, {title} the same for people, {class} the class.
_SKELETONS: dict[str, tuple[str, dict[str, str]]] = {
    "c": (
        "drivers/null/null.c",
        {
            "The null driver: the smallest complete driver, to be read beside driver.h and copied.": (
                "The {name} driver. It was made as the smallest complete one, to be read beside driver.h and filled in."
            ),
            "the null driver has no": "the {name} driver has no",
            '"Null device"': '"{title} device"',
            '"torch-outboard"': '"unknown"',
            '"null"': '"{name}"',
        },
    ),
    "python": (
        "examples/pure_python_driver.py",
        {
            "A complete driver in pure Python: devices whose memory is host memory, and whose": (
                "The {name} driver. As it was made, it has devices whose memory is host memory, and whose"
            ),
            '"pure_python_driver:PythonDriver"': '"{name}"',
            'device="python"': 'device="{name}"',
            'name = "python"': 'name = "{name}"',
            "class PythonDriver(": "class {class}(",
            "Pure Python {{device}}": "{title} {{device}}",
        },
    ),
}


def skeleton(language: str, name: str) -> str:
    """Gives the source of a driver called `name`, in "c" or "python"; RuntimeError if the skeleton is not as known."""
    path, replacements = _SKELETONS[language]
    title = name.replace("_", " ").capitalize()
    values = {"name": name, "title": title, "class": class_name(name)}
    text = _read(path)
    for old, new in replacements.items():
        wanted = old.replace("{{", "{").replace("}}", "}")
        if wanted not in text:
            raise RuntimeError(
                f"{path} has changed: it lacks {wanted!r}, which torch_outboard/drivers/skeletons.py renames"
            )
        text = text.replace(wanted, new.format(**values))
    return text


def class_name(name: str) -> str:
    """Gives the driver's class: MyChipDriver for my_chip."""
    return "".join(part.capitalize() for part in name.split("_")) + "Driver"


def contract_header() -> str:
    """Gives driver.h."""
    installed = _HERE.parent / "include" / "torch_outboard" / "driver.h"
    path = installed if installed.is_file() else _SOURCE / "include" / "torch_outboard" / "driver.h"
    return path.read_text(encoding="utf-8")


def _read(path: str) -> str:
    installed = _HERE / "skeleton_sources" / Path(path).name
    return (installed if installed.is_file() else _SOURCE / path).read_text(encoding="utf-8")
