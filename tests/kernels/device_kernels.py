# SPDX-License-Identifier: BSD-3-Clause
"""What tests ask of the kernels that the device uses."""

from __future__ import annotations

import os

from torch_outboard import _C
from torch_outboard.compile.generators import generators

__all__ = ["UNUSED", "asks_native", "has_exchange", "is_native"]

# What is said of the first kernel that the driver's compiler refuses.
UNUSED = "the kernel that was generated for .* is not used"


def has_exchange() -> bool:
    """Return whether lanes of matrix units exchange numbers. Else kernels of attention take long to compile."""
    units = generators().eager().dialect.units
    return not units or units[0].exchange != ""


def asks_native() -> bool:
    """Return whether kernels of the driver and of users run, which OUTBOARD_PROVIDERS may leave out."""
    return "native" in os.environ.get("OUTBOARD_PROVIDERS", "native")


def is_native(operator: str) -> bool:
    """Return whether a kernel of the driver runs an operator."""
    return asks_native() and operator in _C.native_operators()
