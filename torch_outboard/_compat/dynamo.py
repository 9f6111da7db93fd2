# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.15: operators import Dynamo although they do not need it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch._compile import _disable_dynamo

from torch_outboard._compat.imports import when_imported

__all__ = ["defer_dynamo", "needs_defer_dynamo"]

_DISABLED = "__dynamo_disable"  # the attribute in which torch._disable_dynamo stores the disabled function


def needs_defer_dynamo() -> bool:
    """Return True if torch's Python meta functions import Dynamo at their first call."""
    return any(True for _ in _importers())


def defer_dynamo() -> None:
    """Prevent Python meta functions from importing Dynamo only to disable it for themselves, which takes seconds.

    Before Dynamo is imported, nothing traces these functions, so they can run unchanged. After its import, torch's own
    code runs. Upstream: https://github.com/pytorch/pytorch/pull/146219.
    """
    if "torch._dynamo" in sys.modules:
        return
    functions = [function for function in _importers() if not hasattr(function, _DISABLED)]
    for function in functions:
        setattr(function, _DISABLED, function)

    def undo(_: object) -> None:
        for function in functions:
            if getattr(function, _DISABLED, None) is function:
                delattr(function, _DISABLED)

    when_imported("torch._dynamo", undo)


def _importers() -> Iterator[Any]:
    """Yield the functions wrapped by torch._disable_dynamo, in torch's decompositions and their parts."""
    code, seen = _disable_dynamo(lambda: None).__code__, set()
    todo = [function for table in torch._decomp.global_decomposition_table.values() for function in table.values()]
    for name in [name for name in sys.modules if name.startswith("torch._refs")]:
        todo += vars(sys.modules[name]).values()
    while todo:
        function = todo.pop()
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        if function.__code__ is code:
            yield cells["fn"].cell_contents
        for cell in cells.values():
            try:
                todo.append(cell.cell_contents)
            except ValueError:  # the cell of a name without a value
                continue
