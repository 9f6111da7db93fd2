# SPDX-License-Identifier: BSD-3-Clause
"""Python's garbage collection while plans are built.

A full collection traverses every object of Inductor and sympy, which takes half a second on a slow core, and every few
plans create enough objects to trigger one. After a build, one collection of the youngest generation frees the whole
graph.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

__all__ = ["defer_collection"]

_is_off = False


@contextlib.contextmanager
def defer_collection() -> Iterator[None]:
    """Put off collections to the end of the scope, unless the program has disabled them itself."""
    global _is_off
    if not gc.isenabled():
        yield
        return
    _is_off = True
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _is_off = False


def _begin_in_child() -> None:
    """Enable collections in a child that was forked during a build, where no thread would do it."""
    global _is_off
    if _is_off:
        gc.enable()
        _is_off = False


os.register_at_fork(after_in_child=_begin_in_child)
