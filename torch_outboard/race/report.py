# SPDX-License-Identifier: BSD-3-Clause
"""The result of a search, as text and as JSON."""

from __future__ import annotations

import shlex
from typing import Any

from torch_outboard.race.search import Finding

__all__ = ["as_json", "as_text", "command_of", "schedule_of", "status_of"]


def status_of(finding: Finding) -> int:
    """Return the exit status: 1 if a race was found, else 0."""
    return 1 if finding.by else 0


def schedule_of(finding: Finding) -> str:
    """Return the schedule that shows a difference, such as "pct:7", or "" if there is none."""
    return "" if finding.shown is None else finding.shown["schedule"]


def command_of(finding: Finding) -> str:
    """Return the command that reproduces the difference or the sanitizer's report."""
    program = finding.plan.program
    pytest = program.kind == "pytest"
    words = ["pytest", "--outboard-race"] if pytest else ["outboard", "race"]
    prefix = "--outboard-race-" if pytest else "--"
    words.append(f"{prefix}driver={finding.plan.driver}")
    if finding.shown is not None:
        words.append(f"{prefix}schedule={finding.shown['schedule']}")
        if finding.plan.depth is not None:
            words.append(f"{prefix}depth={finding.plan.depth}")
        if "changes" in finding.shown:
            words.append(f"{prefix}changes={finding.shown['changes']}")
    return shlex.join([*words, *(program.arguments if pytest else program.words)])


def as_text(finding: Finding) -> str:
    """Return the report for a terminal."""
    parts = []
    if finding.shown is not None:
        options = ", ".join(f"{name}={value}" for name, value in finding.shown.items())
        stale = (
            f"\n  On the inline schedule, the freed memory of that number is {finding.stale}." if finding.stale else ""
        )
        parts.append(f"A race shows under {options}:\n  {finding.difference}.{stale}")
    for number, race in enumerate(finding.races):
        title = "The sanitizer names the accesses" if number == 0 else "And"
        parts.append(f"{title}: {race['text_head']}\n\n{_accesses(race)}\nMissing: {race['remedy']}.")
    for text in finding.races_elsewhere:
        parts.append(f"In a process that the program has started, {text}")
    if finding.by:
        if not finding.races and not finding.races_elsewhere:
            parts.append(
                "The sanitizer has no report: the accesses are not torch's, or the memory is shared between them."
            )
        parts.append(f"Repeat it: {command_of(finding)}")
    else:
        parts.append(f"No race: {finding.runs} runs had the same results, and the sanitizer has no report.")
    parts += [f"Note: {note}." for note in finding.notes]
    return "\n\n".join(parts)


def _accesses(race: dict[str, Any]) -> str:
    shown = race["accesses"][:1] if race["kind"] == "unwaited" else race["accesses"]
    return "\nand\n\n".join(f"{access['text_head']}\n{access['stack']}" for access in shown)


def as_json(finding: Finding) -> dict[str, Any]:
    """Return the report as JSON types."""
    return {
        "found": bool(finding.by),
        "by": finding.by,
        "schedule": schedule_of(finding) or None,
        "options": dict(finding.shown or {}),
        "runs": finding.runs,
        "lines": finding.lines,
        "difference": finding.difference,
        "stale": finding.stale or None,
        "races": [
            {
                "kind": race["kind"],
                "missing": race["remedy"],
                "accesses": [
                    {key: access[key] for key in ("op", "stream", "is_write", "place", "stack")}
                    for access in race["accesses"]
                ],
            }
            for race in finding.races
        ],
        "races_elsewhere": finding.races_elsewhere,
        "command": command_of(finding) if finding.by else None,
        "notes": finding.notes,
        "seconds": round(finding.seconds, 3),
    }
