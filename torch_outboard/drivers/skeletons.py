# SPDX-License-Identifier: BSD-3-Clause
"""The drivers that `outboard new` copies: compiled and tested drivers, renamed.

The drivers' files are part of the source tree, and the build installs them beside this module. A replacement without a
match is an error, so that a changed skeleton cannot silently keep its own name.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["class_name", "contract_headers", "license_text", "skeleton"]

_HERE = Path(__file__).resolve().parent
_SOURCE = _HERE.parent.parent

# Memory, streams and events, which other skeletons share.
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

# Devices in another process, without the driver itself.
_OTHER_PROCESS: dict[str, tuple[str, dict[str, str]]] = {
    "{package}/link.py": ("examples/other_process/link.py", {}),
    "{package}/device.py": ("examples/other_process/device.py", {}),
}

# The stand-in for a vendor's runtime, in C++.
_RUNTIME = ("chip.h", "chip.cpp", "chip_process.cpp", "compiler.cpp", "failure.h", "link.h", "protocol.h")

# The dialect of a language, and the header that defines the words it uses.
_DIALECT: dict[str, tuple[str, dict[str, str]]] = {
    "{package}/dialect.py": (
        "examples/own_kernels/dialect.py",
        {'"own_kernels_c"': '"{name}_c"', "class OwnKernelsGenerator": "class {stem}Generator"},
    ),
    "{package}/language.h": ("examples/own_kernels/language.h", {}),
}

# The dialect, and the stand-in for a compiler.
_LANGUAGE: dict[str, tuple[str, dict[str, str]]] = {
    **_DIALECT,
    "{package}/programs.py": ("examples/own_kernels/programs.py", {}),
    "{package}/compiler.py": ("examples/own_kernels/compiler.py", {}),
}

# Template and language -> the new project's files, each with its source and the replacements in it.
# {name} is the driver's name, {title} its readable name, {class} the class, {package} the project's
# package.
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
        **_OTHER_PROCESS,
    },
    ("device", "python"): {
        "{package}/__init__.py": (
            "examples/own_device/__init__.py",
            {
                "A driver for the common chip:": "The {name} driver, as made:",
                '"own_device:OwnDeviceDriver"': '"{name}"',
                'device="own_device"': 'device="{name}"',
                'name = "own_device"': 'name = "{name}"',
                "from examples.other_process import OtherProcessDriver, known\n": "",
                "from examples.other_process.device import ARGUMENT, Op\n": "",
                "from examples.own_kernels.dialect import OwnKernelsGenerator\n": "",
                "from examples.own_kernels.programs import ADDRESS, LIMIT, compiled, items_of\n": "",
                "import DeviceProperties, DriverError, Status\n": (
                    "import DeviceProperties, DriverError, Status\n\n"
                    "from .device import ARGUMENT, Op\n"
                    "from .dialect import {stem}Generator\n"
                    "from .memory import ProcessDriver, known\n"
                    "from .programs import ADDRESS, LIMIT, compiled, items_of\n"
                ),
                "class OwnDeviceDriver(OtherProcessDriver)": "class {class}(ProcessDriver)",
                "OwnKernelsGenerator": "{stem}Generator",
                "Own device {{device}}": "{title} {{device}}",
            },
        ),
        "{package}/memory.py": (
            "examples/other_process/__init__.py",
            {
                "A complete driver in Python whose devices are in another process:": (
                    "Memory, streams and events of devices in another process:"
                ),
                '    import torch_outboard\n    torch_outboard.attach("other_process:OtherProcessDriver", devices=2)\n'
                '    torch.ones(3, device="other_process") + 1\n\n': "",
                'name = "other_process"': 'name = "{name}"',
                "class OtherProcessDriver(": "class ProcessDriver(",
                "Other process {{device}}": "{title} {{device}}",
            },
        ),
        **_OTHER_PROCESS,
        **_LANGUAGE,
    },
    ("device", "c"): {
        "src/driver.c": (
            "examples/own_chip/driver.c",
            {
                "A driver in C for the common chip:": "The {name} driver, as made:",
                '"own_kernels_c"': '"{name}_c"',
                '"Own chip %d"': '"{title} %d"',
                '"own_chip"': '"{name}"',
            },
        ),
        **{f"src/{file}": (f"examples/own_chip/{file}", {}) for file in _RUNTIME},
        **_DIALECT,
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
        **_LANGUAGE,
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
    """Return the sources of a driver called `name`, by their paths in its project.

    Raises RuntimeError if the skeleton has changed and a replacement finds no match.
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
    """Return the name of the driver's class: MyChipDriver for my_chip."""
    return "".join(part.capitalize() for part in name.split("_")) + "Driver"


def contract_headers() -> dict[str, str]:
    """Return the texts of the headers that a driver's library may include, by their names."""
    installed = _HERE.parent / "include" / "torch_outboard"
    folder = installed if installed.is_dir() else _SOURCE / "include" / "torch_outboard"
    return {name: (folder / name).read_text(encoding="utf-8") for name in ("driver.h", "collectives.h")}


def license_text() -> str:
    """Return the licence of the skeletons, which their copies include."""
    return _read("LICENSE")


def _read(path: str) -> str:
    installed = _HERE / "skeleton_sources" / path
    return (installed if installed.is_file() else _SOURCE / path).read_text(encoding="utf-8")
