# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for eager operators, generated when an operator is first called; the provider 'generated' runs them."""

from __future__ import annotations

import sys

__all__ = ["build_seconds", "plan_statistics", "refused_operators"]


def refused_operators() -> list[tuple[str, str]]:
    """Return the operators with calls that the provider 'generated' refused, each with a reason; sorted.

    Each reason ends with a remedy from `torch_outboard.kernels.reasons`. A refused operator over lists of tensors
    (`torch._foreach_*`) runs as one call per tensor.
    """
    from torch_outboard import _C
    from torch_outboard.kernels.reasons import explained  # a table that few programs need

    return [(op, explained(reason)) for op, reason in _C.refused_operators()]


def build_seconds() -> float:
    """Return the seconds that this process has spent on building plans and on reading them from disk."""
    builder = sys.modules.get("torch_outboard.kernels.builder")
    return 0.0 if builder is None else float(builder.seconds())


def plan_statistics() -> dict[str, int]:
    """Return how many plans this process has ("plans"), and how many files it read ("loaded") and wrote ("saved").

    "packed" counts the files read from packs. A file may also hold the refusal of a call, with its reason. The first
    call of a class reads all the plans of that class.
    """
    from torch_outboard import _C

    builder = sys.modules.get("torch_outboard.kernels.builder")  # imported at the first call that needs a plan
    plans = {"plans": _C.built_plans(), "loaded": 0, "saved": 0, "packed": 0}
    if builder is not None:
        store = builder.store()
        plans.update(loaded=store.loaded, saved=store.saved, packed=builder.packs().loaded)
    return plans
