# SPDX-License-Identifier: BSD-3-Clause
"""One driver description in, a complete PyTorch device out."""

from __future__ import annotations

from typing import Any

_PARTS = (
    "_attach",
    "_autoload",
    "_coverage",
    "_errors",
    "_extension",
    "_host_view",
    "_kernels",
    "_launch",
    "_options",
    "_properties",
    "driver",
)


def __getattr__(name: str) -> Any:
    """Serves the public names while this module is half imported.

    Whoever imports this package before torch has `import torch` below call drivers' entry points, and these import from
    here.
    """
    if not name.startswith("_"):
        from importlib import import_module

        for part in _PARTS:
            module = import_module(f"{__name__}.{part}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


import torch as _torch  # noqa: E402, F401

from torch_outboard import amp  # noqa: E402
from torch_outboard._attach import attach, attached_driver  # noqa: E402
from torch_outboard._autoload import autoload  # noqa: E402
from torch_outboard._coverage import Coverage, CoverageRow, coverage, reset_coverage  # noqa: E402
from torch_outboard._errors import (  # noqa: E402
    CaptureError,
    DriverError,
    NotSupportedError,
    OutboardError,
    RegistrationError,
    Status,
)
from torch_outboard._extension import include_paths, library_paths  # noqa: E402
from torch_outboard._host_view import host_view  # noqa: E402
from torch_outboard._kernels import register_kernel  # noqa: E402
from torch_outboard._launch import Kernel, build_kernel, launch  # noqa: E402
from torch_outboard._options import Option  # noqa: E402
from torch_outboard._properties import DeviceProperties  # noqa: E402
from torch_outboard._version import __version__  # noqa: E402
from torch_outboard.driver import Driver  # noqa: E402

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
