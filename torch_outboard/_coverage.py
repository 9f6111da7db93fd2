# SPDX-License-Identifier: BSD-3-Clause
"""Counts of calls by operator and provider."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

from torch_outboard._attach import attached_driver
from torch_outboard.kernels import refused_operators

__all__ = ["Coverage", "CoverageRow", "coverage", "reset_coverage"]


class CoverageRow(NamedTuple):
    """Calls of one operator at one provider: "native", "generated", "host", "fallback", or "staged" for collectives."""

    op: str
    provider: str
    calls: int


class Coverage(Sequence[CoverageRow]):
    """A list of rows, sorted by operator and provider, that prints as a table.

    Attributes
    ----------
    reasons : mapping of str to tuple of str
        For operators that the host or the fallback ran: why their calls have no generated kernel, and what to do. Empty
        if the device has no kernel generator.
    """

    def __init__(self, rows: Sequence[CoverageRow], reasons: Sequence[tuple[str, str]] = ()) -> None:
        self._rows = sorted(rows)
        elsewhere = {row.op for row in self._rows if row.provider in ("host", "fallback")}
        self.reasons: dict[str, tuple[str, ...]] = {}
        for op, reason in reasons:
            if op in elsewhere:
                self.reasons[op] = (*self.reasons.get(op, ()), reason)

    @overload
    def __getitem__(self, index: int) -> CoverageRow: ...
    @overload
    def __getitem__(self, index: slice) -> Coverage: ...
    def __getitem__(self, index: int | slice) -> CoverageRow | Coverage:
        if not isinstance(index, slice):
            return self._rows[index]
        return Coverage(self._rows[index], [(op, reason) for op, reasons in self.reasons.items() for reason in reasons])

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[CoverageRow]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Coverage) and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]

    def calls(self, op: str | None = None, provider: str | None = None) -> int:
        """Add up the calls of an operator, of a provider, or of both."""
        return sum(row.calls for row in self if op in (None, row.op) and provider in (None, row.provider))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dicts, for JSON."""
        return [row._asdict() for row in self]

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.markup import escape
        from rich.table import Table

        table = Table(caption=f"{len({row.op for row in self})} operators, {self.calls()} calls")
        table.add_column("operator")
        table.add_column("provider")
        table.add_column("calls", justify="right")
        for row in self:
            table.add_row(row.op, row.provider, str(row.calls))
        if not self.reasons:
            return table
        why = Table("operator", "reason for no generated kernel")
        for op, reasons in self.reasons.items():
            for reason in reasons:
                why.add_row(escape(op), escape(reason))
        return Group(table, why)

    def __str__(self) -> str:
        from rich.console import Console

        # Wide enough that operator names are never cut, whatever the output is.
        rest = 110 if self.reasons else 60
        console = Console(width=rest + max((len(row.op) for row in self), default=0), color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip()

    def __repr__(self) -> str:
        return f"<Coverage: {len(self)} rows>"


def coverage() -> Coverage:
    """Return the calls by operator and provider since the start or the last `reset_coverage`.

    The list is empty before a driver is attached.
    """
    if attached_driver() is None:
        return Coverage([])
    from torch_outboard import _C

    return Coverage([CoverageRow(*row) for row in _C.coverage()], refused_operators())


def reset_coverage() -> None:
    """Set all counters of `coverage` to 0."""
    if attached_driver() is not None:
        from torch_outboard import _C

        _C.reset_coverage()
