# SPDX-License-Identifier: BSD-3-Clause
"""The result of a search, as text and as JSON."""

from __future__ import annotations

import shlex
from typing import Any

from torch_outboard.race.search import Finding

__all__ = ["as_json", "as_text", "command_of", "schedule_of", "status_of"]


def status_of(found: Finding) -> int:
    """Return the exit status: 1 if a race was found, else 0."""
    return 1 if found.by else 0


def schedule_of(found: Finding) -> str:
    """Return the schedule that shows a difference, such as "pct:7", or "" if there is none."""
    return "" if found.shown is None else found.shown["schedule"]


def command_of(found: Finding) -> str:
    """Return the command that reproduces the difference or the sanitizer's report."""
    program = found.plan.program
    pytest = program.kind == "pytest"
    words = ["pytest", "--outboard-race"] if pytest else ["outboard", "race"]
    prefix = "--outboard-race-" if pytest else "--"
    words.append(f"{prefix}driver={found.plan.driver}")
    if found.shown is not None:
        words.append(f"{prefix}schedule={found.shown['schedule']}")
        if found.plan.depth is not None:
            words.append(f"{prefix}depth={found.plan.depth}")
        if "changes" in found.shown:
            words.append(f"{prefix}changes={found.shown['changes']}")
    return shlex.join([*words, *(program.arguments if pytest else program.words)])


def as_text(found: Finding) -> str:
    """Return the report for a terminal."""
    parts = []
    if found.shown is not None:
        options = ", ".join(f"{name}={value}" for name, value in found.shown.items())
        stale = f"\n  On the inline schedule, the freed memory of that number is {found.stale}." if found.stale else ""
        parts.append(f"A race shows under {options}:\n  {found.difference}.{stale}")
    for number, race in enumerate(found.races):
        title = "The sanitizer names the accesses" if number == 0 else "And"
        parts.append(f"{title}: {race['text_head']}\n\n{_accesses(race)}\nMissing: {race['remedy']}.")
    for text in found.races_elsewhere:
        parts.append(f"In a process that the program has started, {text}")
    if found.by:
        if not found.races and not found.races_elsewhere:
            parts.append(
                "The sanitizer has no report: the accesses are not torch's, or the memory is shared between them."
            )
        parts.append(f"Repeat it: {command_of(found)}")
    else:
        parts.append(f"No race: {found.runs} runs had the same results, and the sanitizer has no report.")
    parts += [f"Note: {note}." for note in found.notes]
    return "\n\n".join(parts)


def _accesses(race: dict[str, Any]) -> str:
    shown = race["accesses"][:1] if race["kind"] == "unwaited" else race["accesses"]
    return "\nand\n\n".join(f"{access['text_head']}\n{access['stack']}" for access in shown)


def as_json(found: Finding) -> dict[str, Any]:
    """Return the report as JSON types."""
    return {
        "found": bool(found.by),
        "by": found.by,
        "schedule": schedule_of(found) or None,
        "options": dict(found.shown or {}),
        "runs": found.runs,
        "lines": found.lines,
        "difference": found.difference,
        "stale": found.stale or None,
        "races": [
            {
                "kind": race["kind"],
                "missing": race["remedy"],
                "accesses": [
                    {key: access[key] for key in ("op", "stream", "is_write", "place", "stack")}
                    for access in race["accesses"]
                ],
            }
            for race in found.races
        ],
        "races_elsewhere": found.races_elsewhere,
        "command": command_of(found) if found.by else None,
        "notes": found.notes,
        "seconds": round(found.seconds, 3),
    }
