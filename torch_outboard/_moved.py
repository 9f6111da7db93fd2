# SPDX-License-Identifier: BSD-3-Clause
"""Old names of modules, for those who import them."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType

__all__ = ["forward"]


def forward(old: str, new: ModuleType) -> None:
    """Let the name `old` stand for a module that has moved. The importer gets a DeprecationWarning.

    Call it in the module that is imported by its old name, on its top level.
    """
    message = f"{old} is {new.__name__} now; the old name goes after the next release"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    sys.modules[old] = new
