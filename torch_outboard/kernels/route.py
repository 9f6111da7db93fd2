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
    "add_decision",
    "begin",
    "end",
    "is_recording",
    "record_routes",
    "run_decomposition",
    "wrap",
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
class _Recording:
    routes: list[Route] = field(default_factory=list)
    depth: int = 0


# One variable suffices: plans are built one after the other, on one thread.
_recording: _Recording | None = None


@contextlib.contextmanager
def record_routes() -> Iterator[list[Route]]:
    """Record the routes of the plans that are built within the scope."""
    global _recording
    _recording = _Recording()
    try:
        yield _recording.routes
    finally:
        _recording = None


def begin(operator: str) -> None:
    if _recording is not None:
        _recording.routes.append(Route(operator))


def end(text: str = "", kernels: Any = (), refusal: str = "") -> None:
    if _recording is not None and _recording.routes:
        route = _recording.routes[-1]
        route.text, route.kernels, route.refusal = text, list(kernels), refusal


def _name_of(operator: Any) -> str:
    """Return an operator's name in the dispatcher."""
    schema = getattr(operator, "_schema", None)
    return str(operator) if schema is None else f"{schema.name}.{schema.overload_name or 'default'}"


def add_decision(operator: Any, what: str, function: Callable[..., Any] | None = None) -> None:
    """Record the function that computes an operator. A plan may be traced twice, but each decision is recorded once."""
    if _recording is None or not _recording.routes:
        return
    decision = Decision(_name_of(operator), what, function, _recording.depth)
    if decision not in _recording.routes[-1].decisions:
        _recording.routes[-1].decisions.append(decision)


def run_decomposition(
    operator: Any, what: str, function: Callable[..., Any], args: Any, named: Mapping[str, Any]
) -> Any:
    """Call a function that decomposes an operator, and record the call."""
    if _recording is None or not _recording.routes:
        return function(*args, **named)
    decision = Decision(_name_of(operator), what, function, _recording.depth)
    decisions = _recording.routes[-1].decisions
    decisions.append(decision)
    _recording.depth += 1
    try:
        result = function(*args, **named)
    finally:
        _recording.depth -= 1
    decision.has_declined = result is NotImplemented
    return result


def wrap(operator: Any, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that each call is recorded."""
    return lambda *args, **named: run_decomposition(operator, what, function, args, named)


def is_recording() -> bool:
    return _recording is not None
