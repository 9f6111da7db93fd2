# SPDX-License-Identifier: BSD-3-Clause
"""What tests ask of the kernels that the device uses."""

from __future__ import annotations

import os

from torch_outboard import _C
from torch_outboard.compile.generators import generators

__all__ = ["has_exchange", "is_native"]


def has_exchange() -> bool:
    """Return whether lanes of matrix units exchange numbers. Else kernels of attention take long to compile."""
    units = generators().eager().dialect.units
    return not units or units[0].exchange != ""


def is_native(operator: str) -> bool:
    """Return whether the driver has a kernel for an operator, which OUTBOARD_PROVIDERS does not leave out."""
    return operator in _C.native_operators() and "native" in os.environ.get("OUTBOARD_PROVIDERS", "native")
