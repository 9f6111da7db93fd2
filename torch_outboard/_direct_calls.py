# SPDX-License-Identifier: BSD-3-Clause
"""Guards against direct calls of a Python driver's methods during a graph capture."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch_outboard.driver import Driver

__all__ = ["refuse_in_captures"]

# Entries that queue work on a stream.
_ENTRIES = ("copy_async", "fill_async", "copy_nd_async", "host_callback", "kernel_launch", "graph_launch")


def refuse_in_captures(driver: Driver, entries: dict[str, Callable[..., Any] | int]) -> None:
    """Make the attached driver's queuing methods raise CaptureError on a stream that the core is capturing.

    Otherwise, the work would run at once and be missing from the graph. The core calls `entries`, which are unchanged.
    Calls that the driver makes within an entry are allowed.
    """
    for name in _ENTRIES:
        if callable(entries.get(name)):
            setattr(driver, name, _checked(name, getattr(driver, name)))


def _checked(entry: str, method: Callable[..., Any]) -> Callable[..., Any]:
    from torch_outboard import _C

    @functools.wraps(method)
    def call(device: int, stream: int, *arguments: Any, **named: Any) -> Any:
        _C.refuse_in_capture(entry, device, stream)
        return method(device, stream, *arguments, **named)

    return call
