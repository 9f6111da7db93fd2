# SPDX-License-Identifier: BSD-3-Clause
"""Replacing attributes, and restoring them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Patching"]

_MISSING = object()


class Patching:
    """Replaced attributes, each with a reason, and other changes; `undo` reverts everything, the last change first."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self._undo: list[Callable[[], None]] = []
        self.is_undone = False

    def set(self, owner: Any, name: str, value: Any, reason: str) -> None:
        """Replace an attribute of a module or a class."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        where = getattr(owner, "__qualname__", None) or owner.__name__
        self.record(f"{where}.{name}", reason, lambda: _restore(owner, name, before))

    def set_variables(self, values: Mapping[str, str], target: str, reason: str) -> None:
        """Set environment variables, which child processes inherit."""
        before = {name: os.environ.get(name) for name in values}

        def undo() -> None:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

        os.environ.update(values)
        self.record(target, reason, undo)

    def record(self, target: str, reason: str, undo: Callable[[], None]) -> None:
        """Record a change made by other means."""
        self.reasons.setdefault(target, reason)
        self._undo.append(undo)

    def undo(self) -> None:
        """Revert all changes."""
        self.is_undone = True
        while self._undo:
            self._undo.pop()()
        self.reasons.clear()


def _restore(owner: Any, name: str, before: Any) -> None:
    if before is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
