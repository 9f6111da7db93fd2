# SPDX-License-Identifier: BSD-3-Clause
"""The processor time of a test run by folder and driver, printed at its end beside tests/budget.json.

Each test is charged with the time of its own process and of the processes that it started. The suites that
test_each_driver.py starts keep ledgers of their own and hand them up by a file.
"""

from __future__ import annotations

import collections
import json
import os
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from torch_outboard.testing import fork_server

__all__ = ["LEDGER_VARIABLE", "Ledger", "charge_suite", "rows"]

TESTS = Path(__file__).resolve().parent
BUDGET = TESTS / "budget.json"
# The file to which a suite appends its ledger.
LEDGER_VARIABLE = "OUTBOARD_TEST_LEDGER"
# A folder that takes more than this multiple of its budget is warned of.
WARNING_FACTOR = 1.2


def processor_seconds() -> float:
    """Return the processor time of this process and of all that it has started and waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime + fork_server.seconds_of_children()


class Ledger:
    """Charges each test to its folder; of pytest-xdist's workers, the controller adds the ledgers up."""

    def __init__(self, driver: str | None) -> None:
        self.seconds: collections.Counter[str] = collections.Counter()
        self._suffix = f" on {driver.rpartition(':')[2]}" if driver else ""
        self._suite_seconds = 0.0

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add the ledger of a suite, whose time is no longer charged to the test that started the suite."""
        self.seconds.update(seconds)
        self._suite_seconds += sum(seconds.values())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[object]:
        start, self._suite_seconds = processor_seconds(), 0.0
        result = yield
        folder = item.path.parent.name if item.path.parent != TESTS else "starting suites"
        if item.path.is_relative_to(TESTS.parent / "distributions"):
            folder = "distributions"
        self.seconds[folder + self._suffix] += processor_seconds() - start - self._suite_seconds
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["ledger"] = dict(self.seconds)
        elif path := os.environ.get(LEDGER_VARIABLE):
            with open(path, "a") as file:
                file.write(json.dumps(self.seconds) + "\n")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.seconds.update(getattr(node, "workeroutput", {}).get("ledger", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        # A part of the tests has no budget; a suite hands its ledger to its caller.
        config = terminalreporter.config
        whole = {
            "tests",
            *(f"distributions/{path.parent.name}/tests" for path in TESTS.parent.glob("distributions/*/tests")),
        }
        if set(config.args) == whole and not config.option.keyword and not hasattr(config, "workerinput"):
            terminalreporter.section("processor seconds by folder, beside the budget in tests/budget.json")
            for line in rows(self.seconds, json.loads(BUDGET.read_text())):
                terminalreporter.line(line)


def charge_suite(ledger: Ledger, path: Path) -> None:
    """Take over the ledgers that a suite has appended to a file."""
    for line in path.read_text().splitlines():
        ledger.add(json.loads(line))


def rows(spent: Mapping[str, float], budget: Mapping[str, float]) -> list[str]:
    """Return the lines of the report: the folder that exceeds its budget most comes first, the sum last."""

    def share(folder: str) -> float:
        return spent.get(folder, 0) / budget[folder] if budget.get(folder) else float("inf")

    lines = []
    for folder in sorted(spent.keys() | budget.keys(), key=lambda folder: (-share(folder), folder)):
        used, allowed = spent.get(folder, 0), budget.get(folder)
        if used < 1 and not allowed:
            continue
        beside = f"{allowed:6.0f}" if allowed else "   new"
        warning = "  over its budget" if allowed and used > WARNING_FACTOR * allowed else ""
        lines.append(f"{used:7.0f} s of {beside}  {folder}{warning}")
    return [*lines, f"{sum(spent.values()):7.0f} s of {sum(budget.values()):6.0f}  in all"]
