# SPDX-License-Identifier: BSD-3-Clause
"""The report of a sweep over failing calls, as text and as JSON."""

from __future__ import annotations

import shlex
from typing import Any

from torch_outboard.race.faults import Problem, Sweep

__all__ = ["as_json", "as_text", "command_of", "status_of"]

_MAX_PROBLEMS = 20  # problems shown


def status_of(sweep: Sweep) -> int:
    """Return the exit status: 1 if a failing call ends wrongly, else 0."""
    return 1 if sweep.problems else 0


def command_of(sweep: Sweep, rule: str) -> str:
    """Return the command that makes this call fail again."""
    plan = sweep.plan
    options = [f"--option={name}={value}" for name, value in plan.options.items() if name != "poison"]
    words = ["outboard", "run", f"--driver={plan.driver}", *options, "--fail-each", f"--rule={rule}"]
    return shlex.join([*words, *plan.program.words])


def as_text(sweep: Sweep) -> str:
    """Return the report for a terminal."""
    outcomes = sweep.outcomes
    parts = [
        f"{sweep.runs} runs, each with one failing call of {sum(sweep.calls.values())}, in {len(sweep.calls)} entries:"
    ]
    errors = ", ".join(f"{kind} {count}" for kind, count in sweep.errors.most_common())
    parts.append(f"  {outcomes['error']} end with a device error{f' ({errors})' if errors else ''}")
    parts.append(f"  {outcomes['recovered']} end with the right results")
    if outcomes["not reached"]:
        parts.append(f"  {outcomes['not reached']} did not make the call")
    parts.append(f"  {outcomes['problem']} end in another way")
    if sweep.left_out:
        parts.append(f"{sweep.left_out} calls were left out: --runs {sweep.runs + sweep.left_out} lets each fail.")
    for problem in sweep.problems[:_MAX_PROBLEMS]:
        parts.append(f"\n{_problem_text(sweep, problem)}")
    if len(sweep.problems) > _MAX_PROBLEMS:
        parts.append(f"\nAnd {len(sweep.problems) - _MAX_PROBLEMS} more, which --json lists.")
    parts += [f"Note: {note}." for note in sweep.notes]
    return "\n".join(parts)


def _problem_text(sweep: Sweep, problem: Problem) -> str:
    words = "".join(f"    {line}\n" for line in problem.last_words.splitlines())
    return f"{problem.rule}: {problem.what}\n{words}  Repeat it: {command_of(sweep, problem.rule)}"


def as_json(sweep: Sweep) -> dict[str, Any]:
    """Return the report as JSON types."""
    return {
        "found": bool(sweep.problems),
        "runs": sweep.runs,
        "left_out": sweep.left_out,
        "calls": sweep.calls,
        "outcomes": dict(sweep.outcomes),
        "errors": dict(sweep.errors),
        "problems": [
            {
                "rule": problem.rule,
                "what": problem.what,
                "last_words": problem.last_words,
                "command": command_of(sweep, problem.rule),
            }
            for problem in sweep.problems
        ],
        "notes": sweep.notes,
        "seconds": round(sweep.seconds, 3),
    }
