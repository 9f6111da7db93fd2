# SPDX-License-Identifier: BSD-3-Clause
"""Each call of each entry fails once, in a small program: the error has a known type, and later runs are right.

No failure may end the process by a signal, leave it hanging, or leave wrong values behind.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from torch_outboard.testing.plugin import RunPython

from .contract import simulated_entries

ENTRIES = simulated_entries()
QUEUED = ("copy_async", "copy_nd_async", "fill_async", "host_callback")
RULES = [f"{entry}:{{}}:{status}" for status in ("INTERNAL", "OUT_OF_MEMORY", "DEVICE_LOST") for entry in ENTRIES]
RULES += [f"queued:{entry}:{{}}:DATA_LOSS" for entry in QUEUED]
# The program asks streams in a loop, so there is no last call of stream_query.
MAX_CALLS = 130
# After so many accounts without an error the program's first run has no further calls of the entry.
ACCOUNTS_WITHOUT_ERROR = 4
# Of a lost device, of memory that is used up, and of anything else.
ERRORS = {"AcceleratorError", "OutOfMemoryError", "DriverError"}

# Only exit functions run at the end. Whole interpreters are slow to finalize: test_exit.py does so.
ACCOUNT = """
import atexit, os, sys
from unit import faulted
faulted.account(*sys.argv[1:])
atexit._run_exitfuncs()
sys.stdout.flush()
os._exit(0)
"""
EXPECTED = "import json; from unit import faulted; print(json.dumps(faulted.results('cpu')))"
IMPORTS = ("unit.faulted",)


@pytest.fixture(scope="module")
def expected(run_python: RunPython) -> str:
    return run_python(EXPECTED, imports=IMPORTS).stdout


def run(run_python: RunPython, rule: str, schedule: str, expected: str) -> dict[str, Any]:
    # It fails the test for a signal, and for a hang.
    answer = run_python(ACCOUNT, rule, schedule, expected, imports=IMPORTS)
    account: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return account


def problem_of(account: dict[str, Any]) -> str | None:
    """Return what is wrong with a run in which one call failed, or None."""
    attached, outcomes = account["attached"], account["outcomes"]
    waits = [wait for after_run in account["waits"] for wait in after_run]
    if attached != "right":
        return None if attached in ERRORS | {"RegistrationError"} else "attaching ends with an unnamed error"
    if set(outcomes) - ERRORS - {"right"} or set(waits) - ERRORS:
        return "a run or a wait ends with wrong values, an unnamed error, or never"
    if "AcceleratorError" in {*outcomes, *waits}:
        return None
    if outcomes[-1] != "right" or len([outcome for outcome in outcomes if outcome != "right"]) > 1:
        return "one failure disturbs several runs"
    return "memory is left allocated" if account["left"] else None


def is_quiet(account: dict[str, Any]) -> bool:
    """Return whether the first run is right, and no wait behind it failed."""
    return account["attached"] == "right" and account["outcomes"][0] == "right" and not account["waits"][0]


@pytest.mark.parametrize("schedule", ["normal", "lazy:1"])
def test_nothing_fails_without_a_fault(run_python: RunPython, expected: str, schedule: str) -> None:
    account = run(run_python, "", schedule, expected)
    assert is_quiet(account) and problem_of(account) is None


@pytest.mark.database
@pytest.mark.parametrize("schedule", ["normal", "lazy:1"])
@pytest.mark.parametrize("rule", RULES)
def test_each_call_that_fails_is_survived(run_python: RunPython, expected: str, rule: str, schedule: str) -> None:
    quiet, problems = 0, []
    for call in range(1, MAX_CALLS):
        account = run(run_python, rule.format(call), schedule, expected)
        if problem := problem_of(account):
            problems.append(f"{rule.format(call)}: {problem}: {account}")
        quiet = quiet + 1 if is_quiet(account) else 0
        if quiet == ACCOUNTS_WITHOUT_ERROR:
            break
    assert not problems, "\n".join(problems)
