# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for eager operators, generated when they are first called: what the provider 'compiled' runs."""

from __future__ import annotations

import sys

__all__ = ["plan_statistics", "refused_operators"]


def refused_operators() -> list[tuple[str, str]]:
    """Gives the operators of which calls were refused by the provider 'compiled', each with a reason; sorted.

    A reason ends with what to do about it, which `torch_outboard.kernels.reasons` knows for each.
    Operators over lists of tensors (`torch._foreach_*`) that were refused run as an operator for each tensor.
    """
    from torch_outboard import _C
    from torch_outboard.kernels.reasons import explained

    return [(op, explained(reason)) for op, reason in _C.refused_operators()]


def plan_statistics() -> dict[str, int]:
    """Gives how many plans this process has ("plans"), and how many files it read ("loaded") and wrote ("saved").

    Those of packs that it read are counted apart ("packed"). Files also hold that there is no plan for a call, with the
    reason. The first call of a class reads all plans of it.
    """
    from torch_outboard import _C

    builder = sys.modules.get("torch_outboard.kernels.builder")  # imported at the first call that needs a plan
    plans = {"plans": _C.built_plans(), "loaded": 0, "saved": 0, "packed": 0}
    if builder is not None:
        store = builder.store()
        plans.update(loaded=store.loaded, saved=store.saved, packed=builder.packs().loaded)
    return plans
