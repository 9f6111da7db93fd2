# SPDX-License-Identifier: BSD-3-Clause
"""A record of the decisions that determined how calls were computed, for `outboard kernels explain`. Off otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "LOWERING",
    "OF_INDUCTOR",
    "Decision",
    "Route",
    "begin",
    "decided",
    "end",
    "is_noting",
    "noted",
    "noting",
    "run",
]

# How decisions name Inductor's part.
LOWERING, OF_INDUCTOR = "Inductor's lowering", "Inductor's decomposition"


@dataclass
class Decision:
    """A function that computes an operator, or that declined; `depth` counts the enclosing decompositions."""

    operator: str
    what: str
    function: Callable[..., Any] | None
    depth: int = 0
    has_declined: bool = False


@dataclass
class Route:
    """The way of one call to its plan: the decisions, and then the plan's text and kernels, or the refusal."""

    operator: str
    decisions: list[Decision] = field(default_factory=list)
    text: str = ""
    kernels: list[Any] = field(default_factory=list)
    refusal: str = ""


@dataclass
class _Notes:
    routes: list[Route] = field(default_factory=list)
    depth: int = 0


# One variable suffices: plans are built one after the other, on one thread.
_notes: _Notes | None = None


@contextlib.contextmanager
def noting() -> Iterator[list[Route]]:
    """Note the routes of the plans that are built within the scope."""
    global _notes
    _notes = _Notes()
    try:
        yield _notes.routes
    finally:
        _notes = None


def begin(operator: str) -> None:
    if _notes is not None:
        _notes.routes.append(Route(operator))


def end(text: str = "", kernels: Any = (), refusal: str = "") -> None:
    if _notes is not None and _notes.routes:
        route = _notes.routes[-1]
        route.text, route.kernels, route.refusal = text, list(kernels), refusal


def _named(operator: Any) -> str:
    """Return an operator's name in the dispatcher."""
    schema = getattr(operator, "_schema", None)
    return str(operator) if schema is None else f"{schema.name}.{schema.overload_name or 'default'}"


def decided(operator: Any, what: str, function: Callable[..., Any] | None = None) -> None:
    """Note the function that computes an operator. A plan may be traced twice, but each decision is noted once."""
    if _notes is None or not _notes.routes:
        return
    decision = Decision(_named(operator), what, function, _notes.depth)
    if decision not in _notes.routes[-1].decisions:
        _notes.routes[-1].decisions.append(decision)


def run(operator: Any, what: str, function: Callable[..., Any], args: Any, named: Mapping[str, Any]) -> Any:
    """Call a function that decomposes an operator, and note the call."""
    if _notes is None or not _notes.routes:
        return function(*args, **named)
    decision = Decision(_named(operator), what, function, _notes.depth)
    decisions = _notes.routes[-1].decisions
    decisions.append(decision)
    _notes.depth += 1
    try:
        result = function(*args, **named)
    finally:
        _notes.depth -= 1
    decision.has_declined = result is NotImplemented
    return result


def noted(operator: Any, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that each call is noted."""
    return lambda *args, **named: run(operator, what, function, args, named)


def is_noting() -> bool:
    return _notes is not None
