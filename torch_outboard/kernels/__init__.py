# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for eager operators, generated when they are first called: what the provider 'compiled' runs."""

from __future__ import annotations

import sys

__all__ = ["plan_statistics", "refused_operators"]


def refused_operators() -> list[tuple[str, str]]:
    """Gives the operators of which calls were refused by the provider 'compiled', each with a reason; sorted."""
    from torch_outboard import _C

    return _C.refused_operators()


def plan_statistics() -> dict[str, int]:
    """Gives how many plans this process has ("plans"), and how many files it read ("loaded") and wrote ("saved").

    Files also hold that there is no plan for a call, with the reason.
    """
    from torch_outboard import _C

    builder = sys.modules.get("torch_outboard.kernels.builder")  # imported at the first call that needs a plan
    store = None if builder is None else builder.store()
    loaded, saved = (0, 0) if store is None else (store.loaded, store.saved)
    return {"plans": _C.built_plans(), "loaded": loaded, "saved": saved}
