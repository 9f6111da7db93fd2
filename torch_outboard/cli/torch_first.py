# SPDX-License-Identifier: BSD-3-Clause
"""A late import of torch, so that `outboard --help` does not wait for it."""

from __future__ import annotations

__all__ = ["import_torch"]


def import_torch() -> None:
    """Import torch, before any module of this package that needs it.

    torch's import may attach a driver, through OUTBOARD_DRIVER or a vendor's entry point. Attaching imports most of
    this package, and fails if a module of the package is only half imported.
    """
    import torch  # noqa: F401
