# SPDX-License-Identifier: BSD-3-Clause
"""Old names of modules that have moved."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType

__all__ = ["forward"]


def forward(old: str, new: ModuleType) -> None:
    """Forward the name `old` to a module that has moved. The importer gets a DeprecationWarning.

    Call this function at the top level of the module with the old name.
    """
    message = f"{old} is {new.__name__} now; the old name goes after the next release"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    sys.modules[old] = new
