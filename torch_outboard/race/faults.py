# SPDX-License-Identifier: BSD-3-Clause
"""A sweep over a program's driver calls: the program runs once per call, and that call fails."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_outboard.race.compare import Noise, noise_of
from torch_outboard.race.counts import read_counts, rules_of, select_rules
from torch_outboard.race.runs import Program, Run, Runner
from torch_outboard.race.search import check_run
from torch_outboard.testing.share import Share

__all__ = ["FaultPlan", "Problem", "Sweep", "sweep"]

Step = Callable[[str], None]


@dataclass(frozen=True)
class FaultPlan:
    """The failures to inject. If `rules` is not empty, only these run."""

    program: Program
    driver: str  # the name passed to attach
    options: Mapping[str, str]  # options of the driver in every run
    statuses: tuple[str, ...]
    most: int
    share: Share = Share(1, 1)
    rules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """A failing call after which the program ends with neither the right error nor the right results."""

    rule: str
    what: str
    last_words: str


@dataclass
class Sweep:
    """The findings. `outcomes` counts "recovered", "error", "not reached" and "problem"."""

    plan: FaultPlan
    calls: dict[str, int] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # by type
    problems: list[Problem] = field(default_factory=list)
    left_out: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def runs(self) -> int:
        """The number of runs with a failing call."""
        return self.outcomes.total()


@dataclass(frozen=True)
class _Expected:
    """A run without a failure."""

    run: Run
    noise: Noise

    @property
    def observed(self) -> list[list[str]]:
        return list(self.run.answer["observed"])

    @property
    def left(self) -> int:
        return int(self.run.answer["after"]["memory"])


@dataclass(frozen=True)
class _Outcome:
    """How a run with a failing call ended, as in `Sweep.outcomes`, and the problem, if any."""

    kind: str
    run: Run
    what: str = ""


def sweep(plan: FaultPlan, runner: Runner, jobs: int, starts: Callable[[int], Step]) -> Sweep:
    """Run the sweep.

    `starts` is called with the number of runs. The function that it returns is called with the rule of each finished
    run.

    Raises
    ------
    ProgramFailed
        The program fails without an injected failure.
    SearchRefused
        The program chooses its schedule itself.
    """
    start = time.monotonic()
    result = Sweep(plan)
    with tempfile.TemporaryDirectory(prefix="outboard-faults-") as folder, ThreadPoolExecutor(jobs) as pool:
        counts = [Path(folder, name) for name in ("first", "second")]
        runs = [pool.submit(_run, plan, runner, "", path) for path in counts]
        first, second = (run.result() for run in runs)
        for run in (first, second):
            check_run(run, "without a failing call")
        noise = noise_of(first, second)
        expected = _Expected(first, noise)
        result.notes += noise.describe()
        for path in counts:
            for entry, count in read_counts(path)[0].items():
                result.calls[entry] = max(count, result.calls.get(entry, 0))
        rules = list(plan.rules) or _rules(plan, result)
        step = starts(len(rules))
        try:
            futures = {pool.submit(_try, plan, runner, rule, folder, expected): rule for rule in rules}
            for future in as_completed(futures):
                _note(result, futures[future], future.result())
                step(futures[future])
        except KeyboardInterrupt:  # otherwise the pool would wait for its runs
            pool.shutdown(wait=False, cancel_futures=True)
            runner.cancel()
            raise
    result.problems.sort(key=lambda problem: rules.index(problem.rule))
    result.seconds = time.monotonic() - start
    return result


def _rules(plan: FaultPlan, result: Sweep) -> list[str]:
    groups = [[rule for rule in group if plan.share.has(rule)] for group in rules_of(result.calls, plan.statuses)]
    rules = select_rules(groups, plan.most)
    result.left_out = sum(map(len, groups)) - len(rules)
    return rules


def _run(plan: FaultPlan, runner: Runner, rule: str, counts: Path) -> Run:
    options = {**plan.options, "fault": rule, "fault_counts": str(counts)}
    return runner.run(plan.program, options, is_faulted=True)


def _try(plan: FaultPlan, runner: Runner, rule: str, folder: str, expected: _Expected) -> _Outcome:
    """Run the program with a failing call."""
    counts = Path(folder, rule)
    run = _run(plan, runner, rule, counts)
    has_failed = counts.exists() and read_counts(counts)[1] > 0
    counts.unlink(missing_ok=True)
    if problem := _problem(rule, run, expected):
        return _Outcome("problem", run, problem)
    if not has_failed:
        return _Outcome("not reached", run)
    return _Outcome("error" if run.answer and run.answer["error"] else "recovered", run)


def _note(result: Sweep, rule: str, outcome: _Outcome) -> None:
    result.outcomes[outcome.kind] += 1
    run = outcome.run
    if outcome.kind == "error":
        result.errors[run.answer["error"]["type"]] += 1
    elif outcome.kind == "problem":
        words = (run.errors or run.output).strip().splitlines()[-12:]
        result.problems.append(Problem(rule, outcome.what, "\n".join(words)))


def _problem(rule: str, run: Run, expected: _Expected) -> str:
    """Describe what is wrong with a run in which one call failed, or return ""."""
    if run.ended != "exit":
        return f"the program {run.ending}"
    answer = run.answer
    if not answer:
        return _problem_of_exit(run, expected)
    if run.status != answer["status"]:
        return f"the program {run.ending} after it has ended with {answer['status']}: its process fails at its end"
    error = answer["error"]
    # Lost data may make an operator fail before a wait reports the loss.
    is_reported = rule.startswith("queued:") and bool(answer["after"] and answer["after"]["waits"])
    if error is not None and not error["is_named"] and not is_reported:
        return f"it ends with {error['type']}, which is not a device error: {error['text']}"
    if error is None and run.status != expected.run.status:
        return f"the program {run.ending} without an error"
    return _wrong_results(run, expected, is_whole=error is None) or _problem_after(answer["after"], expected)


def _problem_of_exit(run: Run, expected: _Expected) -> str:
    """Judge a program that ended its own process, by its status and output."""
    if run.status == expected.run.status and run.output != expected.run.output:
        return "its output differs, but it exits as if nothing had failed"
    return ""


def _wrong_results(run: Run, expected: _Expected, is_whole: bool) -> str:
    observed, wanted = run.answer["observed"], expected.observed
    for at, (seen, wanted_result) in enumerate(zip(observed, wanted, strict=False)):
        if seen[:2] != wanted_result[:2] and at not in expected.noise.results:
            return f"{seen[0]} is {seen[2]}, but {wanted_result[2]} without a failure"
    if len(observed) > len(wanted) or (is_whole and len(observed) < len(wanted)):
        return f"{len(observed)} results are observed, but {len(wanted)} without a failure"
    if wanted or not is_whole or expected.noise.is_output:
        return ""
    for at, (line, right) in enumerate(zip(run.lines, expected.run.lines, strict=False)):
        if line != right and at not in expected.noise.lines:
            return f"line {at + 1} of the output is {line!r}, but {right!r} without a failure"
    return ""


def _problem_after(after: Mapping[str, Any] | None, expected: _Expected) -> str:
    if after is None or after["computes"] == "lost":
        return ""
    if after["waits"][-1:] == ["never"]:
        return f"waits keep failing: {', '.join(after['waits'][:-1])}"
    if after["computes"] != "right":
        return f"the device no longer computes: {after['computes']}"
    if after["memory"] > expected.left:
        return f"{after['memory']} bytes stay in use, but {expected.left} without a failure"
    return ""
