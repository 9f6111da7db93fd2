# SPDX-License-Identifier: BSD-3-Clause
"""Comparing two runs of a program, ignoring differences that also occur between runs in the same order."""

from __future__ import annotations

from dataclasses import dataclass

from torch_outboard.race.runs import Run

__all__ = ["Noise", "difference", "noise_of"]


@dataclass(frozen=True)
class Noise:
    """Differences between two runs that do all work in call order, and so show no race."""

    lines: frozenset[int] = frozenset()  # positions of lines in the output
    results: frozenset[int] = frozenset()  # positions of results of `observe`
    tests: frozenset[str] = frozenset()
    is_output: bool = False  # the number of lines differs, so no output can be compared

    def describe(self) -> list[str]:
        """Return a sentence for each part that is not compared."""
        notes = []
        if self.is_output:
            notes.append("two runs of the inline schedule print different numbers of lines: the output is not compared")
        elif self.lines:
            first = min(self.lines) + 1
            notes.append(
                f"{len(self.lines)} lines of the output differ between two runs of the inline schedule, line {first} "
                "first: they hold times, addresses or random numbers, and are not compared"
            )
        if self.results:
            notes.append(
                f"{len(self.results)} observed results differ between two runs of the inline schedule and are not "
                "compared: seed the random numbers that they depend on"
            )
        if self.tests:
            notes.append(f"tests that differ between two runs of the inline schedule: {', '.join(sorted(self.tests))}")
        return notes


def noise_of(first: Run, second: Run) -> Noise:
    """Return the differences between two runs of the inline schedule."""
    lines = {at for at, (line, again) in enumerate(zip(first.lines, second.lines, strict=False)) if line != again}
    is_output = len(first.lines) != len(second.lines)
    pairs = zip(_results(first), _results(second), strict=False)
    results = {at for at, (result, again) in enumerate(pairs) if result[:2] != again[:2]}
    tests, others = _tests(first), _tests(second)
    different = {name for name in tests.keys() | others.keys() if tests.get(name) != others.get(name)}
    return Noise(frozenset(lines), frozenset(results), frozenset(different), is_output)


def difference(expected: Run, run: Run, noise: Noise) -> str:
    """Describe how a run differs from the inline schedule's run, or return "" if it does not."""
    is_pytest = bool(expected.answer.get("tests"))
    if (run.ended, run.status) != (expected.ended, expected.status) and not (is_pytest and run.ended == "exit"):
        return f"the program {run.ending}, but {expected.ending} on the inline schedule.{_last_line(run)}"
    if is_pytest:  # pytest's output contains times
        return _different_test(expected, run, noise)
    for at, (result, expected_result) in enumerate(zip(_results(expected), _results(run), strict=False)):
        if result[:2] != expected_result[:2] and at not in noise.results:
            return f"{expected_result[0]} is {expected_result[2]}, but {result[2]} on the inline schedule"
    if len(_results(expected)) != len(_results(run)):
        return f"{len(_results(run))} results are observed, but {len(_results(expected))} on the inline schedule"
    if noise.is_output:
        return ""
    for at, (line, wanted) in enumerate(zip(run.lines, expected.lines, strict=False)):
        if line != wanted and at not in noise.lines:
            return f"line {at + 1} of the output is {line!r}, but {wanted!r} on the inline schedule"
    if len(run.lines) != len(expected.lines):
        return f"the output has {len(run.lines)} lines, but {len(expected.lines)} on the inline schedule"
    return ""


def _different_test(expected: Run, run: Run, noise: Noise) -> str:
    tests, others = _tests(expected), _tests(run)
    for name in [*tests, *(name for name in others if name not in tests)]:
        if name in noise.tests or tests.get(name) == others.get(name):
            continue
        outcome, seen = others.get(name, ("missing", ()))
        wanted, wanted_seen = tests.get(name, ("missing", ()))
        if outcome != wanted:
            why = next((test["why"] for test in run.answer["tests"] if test["name"] == name), "")
            last = why.strip().splitlines()[-1:] or [""]
            return f"the test {name} has {outcome}, but {wanted} on the inline schedule: {last[0]}"
        for observation, actual in zip(wanted_seen, seen, strict=False):
            if observation != actual:
                return f"in the test {name}, {actual[0]} is {actual[2]}, but {observation[2]} on the inline schedule"
        return f"the test {name} observes {len(seen)} results, but {len(wanted_seen)} on the inline schedule"
    return ""


def _results(run: Run) -> list[list[str]]:
    return list(run.answer.get("observed", ()))


def _tests(run: Run) -> dict[str, tuple[str, tuple[tuple[str, ...], ...]]]:
    return {
        test["name"]: (test["outcome"], tuple(tuple(seen) for seen in test["observed"]))
        for test in run.answer.get("tests", ())
    }


def _last_line(run: Run) -> str:
    lines = [line for line in run.errors.strip().splitlines() if line.strip()]
    return f" Its last words: {lines[-1].strip()}" if lines else ""
