# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.14: Inductor rebuilds the dtype rules of its operations at each operation."""

from __future__ import annotations

import functools
from typing import Any

from torch_outboard._compat.source import mentions

__all__ = ["cache_rules", "needs_cache_rules"]


def needs_cache_rules() -> bool:
    """Return True if each use of the object that holds the rules rebuilds them."""
    from torch._inductor.dtype_propagation import DtypePropagationOpsHandler

    initializer = DtypePropagationOpsHandler.__init__
    return mentions(initializer, "op_dtype_propagation_rules") and not mentions(initializer, "_rules_key")


def cache_rules() -> None:
    """Rebuild the rules only if lowerings have registered others.

    A kernel has some twenty operations, and building two hundred rules takes longer than using one. Torch 2.15 does the
    same.
    """
    from torch._inductor import utils
    from torch._inductor.dtype_propagation import DtypePropagationOpsHandler

    of_torch = DtypePropagationOpsHandler.__init__
    if not needs_cache_rules() or hasattr(of_torch, "__wrapped__"):
        return
    known: Any = None

    @functools.wraps(of_torch)
    def __init__(self: Any) -> None:
        nonlocal known
        if known != utils.op_dtype_propagation_rules:
            of_torch(self)
            known = dict(utils.op_dtype_propagation_rules)

    DtypePropagationOpsHandler.__init__ = __init__  # type: ignore[method-assign]
