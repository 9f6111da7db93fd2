# SPDX-License-Identifier: BSD-3-Clause
"""The drivers that `outboard new` copies: compiled and tested ones, renamed.

They are files of the source tree, which the build installs beside this module. A replacement that finds nothing is an
error, so a changed skeleton can't quietly keep its own name.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["class_name", "contract_header", "skeleton"]

_HERE = Path(__file__).resolve().parent
_SOURCE = _HERE.parent.parent

# Memory, streams and events, on which other skeletons build.
_HOST_DEVICE: tuple[str, dict[str, str]] = (
    "examples/pure_python_driver.py",
    {
        "A complete driver in pure Python: devices whose memory is host memory, and whose": (
            "Memory, streams and events of devices. As it was made, memory is host memory, and"
        ),
        '    import torch_outboard\n    torch_outboard.attach("pure_python_driver:PythonDriver", devices=2)\n'
        '    torch.ones(3, device="python") + 1\n\n': "",
        'name = "python"': 'name = "{name}"',
        "class PythonDriver(": "class HostDevice(",
        "Pure Python {{device}}": "{title} {{device}}",
    },
)

# Template and language -> files of the made project: the source of each, and what is replaced in it. {name} is the
# driver's, {title} the same for people, {class} the class, {package} the project's package.
_SKELETONS: dict[tuple[str, str], dict[str, tuple[str, dict[str, str]]]] = {
    ("host-memory", "c"): {
        "src/driver.c": (
            "drivers/null/null.c",
            {
                "The null driver: the smallest complete driver, to be read beside driver.h and copied.": (
                    "The {name} driver. It was made as the smallest complete one, to be read beside driver.h and "
                    "filled in."
                ),
                "the null driver has no": "the {name} driver has no",
                '"Null device"': '"{title} device"',
                '"torch-outboard"': '"unknown"',
                '"null"': '"{name}"',
            },
        )
    },
    ("host-memory", "python"): {
        "{package}/__init__.py": (
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
        )
    },
    ("other-process", "python"): {
        "{package}/__init__.py": (
            "examples/other_process/__init__.py",
            {
                "A complete driver in Python whose devices are in another process:": (
                    "The {name} driver. As it was made, its devices are in another process:"
                ),
                '"other_process:OtherProcessDriver"': '"{name}"',
                'device="other_process"': 'device="{name}"',
                'name = "other_process"': 'name = "{name}"',
                "class OtherProcessDriver(": "class {class}(",
                "Other process {{device}}": "{title} {{device}}",
            },
        ),
        "{package}/device.py": ("examples/other_process/device.py", {}),
    },
    ("kernels", "python"): {
        "{package}/__init__.py": (
            "examples/own_kernels/__init__.py",
            {
                "A driver for devices with a language": "The {name} driver, for devices with a language",
                '"own_kernels:OwnKernelsDriver"': '"{name}"',
                'device="own_kernels"': 'device="{name}"',
                'name = "own_kernels"': 'name = "{name}"',
                "from examples.pure_python_driver import PythonDriver\n": "",
                "from . import compiler\n": "from . import compiler\nfrom .device import HostDevice\n",
                "class OwnKernelsDriver(PythonDriver)": "class {class}(HostDevice)",
                "OwnKernelsGenerator": "{stem}Generator",
                "Own kernels {{device}}": "{title} {{device}}",
            },
        ),
        "{package}/dialect.py": (
            "examples/own_kernels/dialect.py",
            {'"own_kernels_c"': '"{name}_c"', "class OwnKernelsGenerator": "class {stem}Generator"},
        ),
        "{package}/compiler.py": ("examples/own_kernels/compiler.py", {}),
        "{package}/device.py": _HOST_DEVICE,
    },
    ("triton", "python"): {
        "{package}/__init__.py": (
            "examples/own_triton/__init__.py",
            {
                "A driver for devices with a back end": "The {name} driver, for devices with a back end",
                '"own_triton:OwnTritonDriver"': '"{name}"',
                'device="own_triton"': 'device="{name}"',
                'name = "own_triton"': 'name = "{name}"',
                'backend="own_triton"': 'backend="{name}"',
                '"own_triton_ir"': '"{name}_ir"',
                "from examples.pure_python_driver import PythonDriver\n": "",
                "from . import interpreter\n": "from . import interpreter\nfrom .device import HostDevice\n",
                "class OwnTritonDriver(PythonDriver)": "class {class}(HostDevice)",
            },
        ),
        "{package}/backend.py": (
            "examples/own_triton/backend.py",
            {
                'NAME = "own_triton"': 'NAME = "{name}"',
                '"own_triton_ir"': '"{name}_ir"',
                "OwnTritonBackend": "{stem}Backend",
            },
        ),
        "{package}/interpreter.py": ("examples/own_triton/interpreter.py", {}),
        "{package}/device.py": _HOST_DEVICE,
    },
}


def skeleton(template: str, language: str, name: str, package: str) -> dict[str, str]:
    """Gives the sources of a driver called `name`, by their paths in its project.

    RuntimeError if the skeleton is not as known.
    """
    title = name.replace("_", " ").capitalize()
    values = {"name": name, "title": title, "class": class_name(name), "package": package}
    values["stem"] = values["class"].removesuffix("Driver")
    return {
        target.format(**values): _renamed(path, replacements, values)
        for target, (path, replacements) in _SKELETONS[template, language].items()
    }


def _renamed(path: str, replacements: dict[str, str], values: dict[str, str]) -> str:
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
    installed = _HERE / "skeleton_sources" / path
    return (installed if installed.is_file() else _SOURCE / path).read_text(encoding="utf-8")
