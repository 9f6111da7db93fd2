# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.15: importing torch's compiler warns about TorchScript, which the compiler itself uses.

The device's first kernel causes 14 DeprecationWarnings (FutureWarnings from torch 2.15 on). The program has not
requested the compiler, and cannot avoid the warnings.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

__all__ = ["without_own_deprecations"]


@contextlib.contextmanager
def without_own_deprecations() -> Iterator[None]:
    """Ignore torch's warnings about TorchScript. Use it only around an import: filters are global to the process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.script")
        yield
