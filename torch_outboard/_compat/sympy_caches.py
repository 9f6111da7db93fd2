# SPDX-License-Identifier: BSD-3-Clause
"""The caches of sympy, in which torch computes with sizes. Not a change to torch.

Each function of sympy remembers its last 1000 calls, fewer than a plan makes for some functions. The next plan, whose
symbols have the same names, therefore recomputes most of its expressions, and everything that sympy had deduced about
their signs. Comparisons have no cache at all, although a plan repeats each comparison about ten times. sympy's only
setting, the variable SYMPY_CACHE_SIZE, is read when sympy is imported, often by a program's own libraries.
"""

from __future__ import annotations

import functools
import os
from typing import Any

__all__ = ["enlarge_caches"]

_ENTRIES = 1 << 15  # per function; forty plans of convolutions half fill the fullest cache
_COMPARISONS = ("is_eq", "is_ge")  # functions of sympy.core.relational, which the other comparisons call


def enlarge_caches() -> None:
    """Give sympy's functions larger caches, once, unless the user has chosen their size or switched them off."""
    if "SYMPY_CACHE_SIZE" in os.environ or "SYMPY_USE_CACHE" in os.environ:
        return
    from sympy.core import relational  # type: ignore[import-untyped]
    from sympy.core.cache import CACHE, cacheit  # type: ignore[import-untyped]

    for name in _COMPARISONS:
        if not hasattr(compare := getattr(relational, name), "cache_info"):
            setattr(relational, name, cacheit(compare))
    for wrapper in CACHE:
        _enlarge(wrapper)


def _enlarge(wrapper: Any) -> None:
    """Replace the cache that a function made by sympy's `cacheit` calls, if it is smaller."""
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))
    cached = cells["cfunc"].cell_contents
    if cached.cache_parameters()["maxsize"] >= _ENTRIES:
        return
    wider = functools.lru_cache(_ENTRIES, typed=True)(cached.__wrapped__)
    cells["cfunc"].cell_contents = wider
    wrapper.cache_info, wrapper.cache_clear = wider.cache_info, wider.cache_clear
