# SPDX-License-Identifier: BSD-3-Clause
"""The import of torch, for which `outboard --help` doesn't wait."""

from __future__ import annotations

__all__ = ["import_torch"]


def import_torch() -> None:
    """Import torch, before any module of this package that needs it.

    torch's import may attach a driver, by OUTBOARD_DRIVER or a vendor's entry point, and that imports most of this
    package: a module that is half imported then would fail it.
    """
    import torch  # noqa: F401
