# SPDX-License-Identifier: BSD-3-Clause
"""One driver description, turned into a complete PyTorch device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch_outboard._build import add_core
from torch_outboard._version import __version__

add_core(__path__)

if TYPE_CHECKING:
    from torch_outboard import amp, as_cuda
    from torch_outboard._attach import attach, attached_driver
    from torch_outboard._autoload import autoload
    from torch_outboard._coverage import Coverage, CoverageRow, coverage, reset_coverage
    from torch_outboard._errors import (
        CaptureError,
        DriverError,
        NotSupportedError,
        OutboardError,
        RegistrationError,
        Status,
    )
    from torch_outboard._extension import include_paths, library_paths
    from torch_outboard._host_view import host_view
    from torch_outboard._kernels import register_kernel
    from torch_outboard._launch import Kernel, build_kernel, launch
    from torch_outboard._options import Option
    from torch_outboard._properties import DeviceProperties
    from torch_outboard.driver import Driver

__all__ = [
    "CaptureError",
    "Coverage",
    "CoverageRow",
    "DeviceProperties",
    "Driver",
    "DriverError",
    "Kernel",
    "NotSupportedError",
    "Option",
    "OutboardError",
    "RegistrationError",
    "Status",
    "__version__",
    "amp",
    "as_cuda",
    "attach",
    "attached_driver",
    "autoload",
    "build_kernel",
    "coverage",
    "host_view",
    "include_paths",
    "launch",
    "library_paths",
    "register_kernel",
    "reset_coverage",
]

# The modules of the public names.
_PUBLIC_NAMES = {
    "_attach": ("attach", "attached_driver"),
    "_autoload": ("autoload",),
    "_coverage": ("Coverage", "CoverageRow", "coverage", "reset_coverage"),
    "_errors": ("CaptureError", "DriverError", "NotSupportedError", "OutboardError", "RegistrationError", "Status"),
    "_extension": ("include_paths", "library_paths"),
    "_host_view": ("host_view",),
    "_kernels": ("register_kernel",),
    "_launch": ("Kernel", "build_kernel", "launch"),
    "_options": ("Option",),
    "_properties": ("DeviceProperties",),
    "amp": (),
    "driver": ("Driver",),
}
# Imported on first access: most programs never need these names.
_LAZY_MODULES = ("as_cuda",)
_MODULE_OF = {name: module for module, names in _PUBLIC_NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import the module of a public name that is accessed before the last lines of this module have run.

    The command `outboard` skips those lines, and drivers' entry points, which `import torch` calls, run before them.
    """
    from importlib import import_module

    if name in _MODULE_OF:
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    if name == "_C":
        import torch  # noqa: F401 - loads the libraries that the extension is linked against

        return import_module(f"{__name__}._C")
    if name in _PUBLIC_NAMES or name in _LAZY_MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "torch_outboard_command" not in sys.modules:  # the command starts without torch
    import torch as _torch  # noqa: F401

    for _name in (*_PUBLIC_NAMES, *_MODULE_OF):
        __getattr__(_name)
