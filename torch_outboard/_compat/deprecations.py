# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.15: its compiler warns of TorchScript when it is imported, which it uses itself.

These are 14 DeprecationWarnings at the device's first kernel, FutureWarnings from 2.15 on. The program has not asked
for the compiler, and cannot do anything about them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

__all__ = ["without_own_deprecations"]


@contextlib.contextmanager
def without_own_deprecations() -> Iterator[None]:
    """Ignore what torch says about TorchScript; for an import, since filters belong to the process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.script")
        yield
