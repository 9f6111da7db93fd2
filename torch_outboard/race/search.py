# SPDX-License-Identifier: BSD-3-Clause
"""Searching for a schedule that changes a program's results, and for the fewest changes that still do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from torch_outboard.race.compare import Noise, difference, noise_of
from torch_outboard.race.runs import Program, Run, Runner

__all__ = ["ProgramFailed", "Finding", "Plan", "SearchRefused", "check_run", "search"]

Step = Callable[[str], None]


class SearchRefused(Exception):
    """The program cannot be searched as requested; the message explains what to change."""


class ProgramFailed(Exception):
    """The program fails on the inline schedule, so there are no results to compare with."""


@dataclass(frozen=True)
class Plan:
    """The runs to make."""

    program: Program
    driver: str  # the name passed to attach
    name: str  # name of the driver's devices
    options: frozenset[str]  # options that the driver has
    seeds: tuple[int, ...]
    depth: int | None = None
    changes: int | None = None  # changes of ranks in a run to repeat


@dataclass
class Finding:
    """The result of a search."""

    plan: Plan
    expected: Run  # on the inline schedule, under the sanitizer
    shown: Mapping[str, str] | None = None  # options of the schedule that shows the difference
    difference: str = ""
    ended: str = ""  # as in Run
    runs: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def races(self) -> list[dict[str, Any]]:
        """The reports of the sanitizer."""
        return list(self.expected.answer.get("races", ()))

    @property
    def stale(self) -> str:
        """The freed memory whose pattern is in the differing result, as the inline schedule used it; "" if unknown."""
        number = re.search(r"memory that was freed as number (\d+)", self.difference)
        return "" if number is None else str(self.expected.answer.get("poisoned", {}).get(number[1], ""))

    @property
    def by(self) -> list[str]:
        """What found a race: "schedule", "sanitizer"."""
        is_reported = bool(self.races or self.races_elsewhere)
        return [*(["schedule"] if self.shown is not None else []), *(["sanitizer"] if is_reported else [])]

    @property
    def races_elsewhere(self) -> list[str]:
        """The sanitizer's reports from processes that the program started, as text."""
        reports = re.findall(
            r"(?ms)^OUTBOARD_SANITIZER: (a possible race on .*?^Missing: [^\n]*)", self.expected.errors
        )
        own = {f"Missing: {race['remedy']}." for race in self.races}
        return [text for text in reports if text.rpartition("\n")[2] not in own]

    @property
    def lines(self) -> list[list[Any]]:
        """File and line of both accesses of the first race, as far as known."""
        if not self.races:
            return []
        places = [access["place"] for access in self.races[0]["accesses"] if access["place"]]
        return places[:1] if self.races[0]["kind"] == "unwaited" else places


def search(plan: Plan, runner: Runner, jobs: int, step: Step) -> Finding:
    """Search for a race.

    `step` is called with the name of each finished run.

    Raises
    ------
    ProgramFailed
        The program fails on the inline schedule.
    SearchRefused
        The program chooses its schedule itself, or its exit status is random.
    """
    start = time.monotonic()
    common = {"poison": "1"} if "poison" in plan.options else {}
    with ThreadPoolExecutor(jobs) as pool:
        try:
            finding = _search(plan, runner, pool, common, step)
        except KeyboardInterrupt:  # otherwise the pool would wait for its runs
            runner.cancel()
            raise
    finding.seconds = time.monotonic() - start
    return finding


def _search(plan: Plan, runner: Runner, pool: ThreadPoolExecutor, common: Mapping[str, str], step: Step) -> Finding:
    inline = {**common, "schedule": "inline"}
    runs = [pool.submit(runner.run, plan.program, inline, sanitizes) for sanitizes in (False, True)]
    first, second = (_result_of(run, step, "inline") for run in runs)
    for run in (first, second):
        check_run(run)
    noise = noise_of(first, second)
    finding = Finding(plan, second, runs=2, notes=noise.describe())
    if not second.answer:
        finding.notes.append("the program ends its own process, so only the sanitizer's printed reports are known")
    if _has_one_stream(second):
        finding.notes.append("nothing to find: one stream")
    else:
        _try_seeds(finding, first, noise, runner, pool, common, step)
        # A run that does not end takes the whole time limit.
        if finding.shown is not None and finding.ended != "time" and plan.changes is None and "changes" in plan.options:
            _shorten(finding, first, noise, runner, pool, step)
    return finding


def _result_of(future: Future[Run], step: Step, name: str) -> Run:
    run = future.result()
    step(name)
    return run


def check_run(run: Run, where: str = "on the inline schedule") -> None:
    """Raise ProgramFailed or SearchRefused if a run's results cannot serve as a reference."""
    tests = run.answer.get("tests", ())
    if run.ended != "exit" or (run.status != 0 and not (tests and run.status == 1)):
        words = run.errors.strip() or run.output.strip()
        hint = ""
        if run.ended == "time":
            hint = " Raise --time-limit, or shorten the program."
        elif "EOFError" in words:
            hint = " It reads its standard input: pass a file with --stdin."
        raise ProgramFailed(f"the program {run.ending} {where}.{hint}\n{_tail(words)}")
    schedule, reported = run.options["schedule"], run.answer.get("options", {}).get("schedule", "inline")
    if schedule != reported:
        raise SearchRefused(
            f"the program chooses the schedule itself: it attaches the driver with schedule={reported}. Remove that "
            "option from the program, because this command sets it through the environment"
        )


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-30:])


def _has_one_stream(run: Run) -> bool:
    """Return whether all schedules are identical, because only one order of work is possible."""
    answer = run.answer
    return bool(answer) and answer["streams"] <= 1 and not answer["has_host_copies"]


def _options_for(finding: Finding, common: Mapping[str, str], seed: int) -> dict[str, str]:
    plan = finding.plan
    options = {**common, "schedule": f"pct:{seed}"}
    if plan.depth is not None and "depth" in plan.options:
        options["depth"] = str(plan.depth)
    if "steps" in plan.options and (steps := finding.expected.answer.get("steps")):
        options["steps"] = str(steps)
    if plan.changes is not None:
        options["changes"] = str(plan.changes)
    return options


def _try_seeds(
    finding: Finding,
    expected: Run,
    noise: Noise,
    runner: Runner,
    pool: ThreadPoolExecutor,
    common: Mapping[str, str],
    step: Step,
) -> None:
    """Run the seeds until a seed shows a difference."""
    todo = list(finding.plan.seeds)
    running: dict[Future[Run], int] = {}
    while todo or running:
        while todo and len(running) < pool._max_workers:
            seed = todo.pop(0)
            running[pool.submit(runner.run, finding.plan.program, _options_for(finding, common, seed))] = seed
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=running.__getitem__):
            seed = running.pop(future)
            run = _result_of(future, step, f"pct:{seed}")
            finding.runs += 1
            text = difference(expected, run, noise)
            if text and finding.shown is None:
                finding.shown, finding.difference, finding.ended = run.options, text, run.ended
                todo.clear()


def _shorten(
    finding: Finding, expected: Run, noise: Noise, runner: Runner, pool: ThreadPoolExecutor, step: Step
) -> None:
    """Find the shortest prefix of the rank changes that still shows a difference.

    Prefixes of up to eight changes are tried one by one; longer ones by bisection.
    """

    def shows(changes: int) -> bool:
        assert finding.shown is not None
        options = {**finding.shown, "changes": str(changes)}
        run = _result_of(pool.submit(runner.run, finding.plan.program, options), step, f"changes {changes}")
        finding.runs += 1
        text = difference(expected, run, noise)
        if text:
            finding.shown, finding.difference = options, text
        return bool(text)

    tried = -1
    most = 1 << 20
    while tried < most:
        changes = tried + 1 if tried < 8 else 2 * tried
        if shows(changes):
            break
        tried = changes
    else:
        finding.notes.append("the difference needs the whole run: no prefix of its changes shows it")
        return
    low, high = tried, changes  # low does not show the difference, or no lower number remains
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
