# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for eager operators, generated when they are first called: what the provider 'compiled' runs."""

from __future__ import annotations

__all__ = ["refused_operators"]


def refused_operators() -> list[tuple[str, str]]:
    """Gives the operators of which calls were refused by the provider 'compiled', each with a reason; sorted."""
    from torch_outboard import _C

    return _C.refused_operators()
