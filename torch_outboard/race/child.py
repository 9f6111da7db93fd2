# SPDX-License-Identifier: BSD-3-Clause
"""One run of a program, in its own process.

The results go into a file, as JSON, however the program ends; a program that ends its process itself leaves none.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

_MOST_TASKS = 400  # that a picture shows


def main(path: str) -> None:
    """Run the program of the request, a JSON object in a file, and exit with its status."""
    request = json.loads(Path(path).read_text(encoding="utf-8"))
    os.setsid()  # so that the processes that the program starts can be ended with it
    Path(request["process"]).write_text(str(os.getpid()), encoding="utf-8")
    os.chdir(request["folder"])
    if request["stdin"]:
        with open(request["stdin"], "rb") as file:
            os.dup2(file.fileno(), 0)
    sys.path[:] = [one for one in sys.path if one]  # "" is the folder of this process, not the program's

    import torch

    import torch_outboard
    from torch_outboard import sanitizer
    from torch_outboard.testing import observed

    process = os.getpid()
    torch_outboard.attach(request["driver"])
    log = None
    if request["sanitizes"]:
        log = sanitizer.enable_with_log()
    _seed(torch)
    observed.record()
    tests: list[dict[str, Any]] = []
    status, problem = _run(request, tests)
    if os.getpid() != process:  # a forked child of the program comes here too
        os._exit(status)
    if request["sanitizes"]:
        sanitizer.finish()  # before the wait below, which the program lacks
    try:
        torch.accelerator.synchronize()
    except Exception:  # noqa: BLE001 - whatever the program has left behind is its result
        status, problem = status or 1, problem or traceback.format_exc()
    answer = {
        "status": status,
        "problem": problem,
        "options": {name: str(value) for name, value in _options().items()},
        "observed": [[one.name, one.digest, one.shown] for one in observed.take()],
        "tests": tests,
        **(_sanitized(sanitizer, log) if request["sanitizes"] else {}),
    }
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")
    sys.stdout.flush()
    sys.exit(status)


def _seed(torch: Any) -> None:
    random.seed(0)
    torch.manual_seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)


def _options() -> dict[str, Any]:
    from torch_outboard import attached_driver

    driver = attached_driver()
    return dict(driver.option_values) if driver is not None else {}


def _run(request: dict[str, Any], tests: list[dict[str, Any]]) -> tuple[int, str]:
    """Run the program and return its exit status, and the traceback of what it has raised."""
    kind, target, arguments = request["kind"], request["target"], request["arguments"]
    try:
        if kind == "pytest":
            import pytest

            return int(pytest.main(["-p", "no:cacheprovider", *arguments], plugins=[_Results(tests)])), ""
        sys.argv = [target, *arguments]
        if kind == "module":
            sys.path.insert(0, os.getcwd())
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(target)))
            runpy.run_path(target, run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0, ""
        print(error.code, file=sys.stderr)
        return 1, str(error.code)
    except BaseException:  # noqa: BLE001 - an interruption too is the program's end
        text = traceback.format_exc()
        print(text, file=sys.stderr)
        return 1, text
    return 0, ""


class _Results:
    """A plugin of pytest that notes each test's outcome and what the test observes, and seeds the test."""

    def __init__(self, tests: list[dict[str, Any]]) -> None:
        self.tests = tests

    def pytest_runtest_setup(self, item: Any) -> None:
        import torch

        from torch_outboard.testing import observed

        observed.take()
        _seed(torch)

    def pytest_runtest_logreport(self, report: Any) -> None:
        from torch_outboard.testing import observed

        if report.when == "call" or report.failed or (report.when == "setup" and report.skipped):
            seen = [[one.name, one.digest, one.shown] for one in observed.take()]
            why = report.longreprtext if report.failed else ""
            self.tests.append(
                {"name": report.nodeid, "outcome": report.outcome, "when": report.when, "observed": seen, "why": why}
            )


def _sanitized(sanitizer: Any, log: Any) -> dict[str, Any]:
    found = sanitizer.races()
    entries = list(log.entries)
    return {
        "races": [_race(one) for one in found],
        "streams": len(log.streams),
        "steps": log.steps,
        "has_host_copies": log.host_copies > 0,
        "log": _around(entries, found),
    }


def _around(entries: list[Any], found: list[Any]) -> list[Any]:
    """Return the entries that a picture shows: those around the first race, or the first ones."""
    if len(entries) > _MOST_TASKS and found:
        first, last = found[0].first.number, found[0].second.number
        near = [
            entry for entry in entries if first - 40 <= entry[1] <= first + 150 or last - 150 <= entry[1] <= last + 40
        ]
        return near[:_MOST_TASKS]
    return entries[:_MOST_TASKS]


def _race(race: Any) -> dict[str, Any]:
    return {
        "kind": race.kind,
        "remedy": race.remedy,
        "text_head": race.what,
        "accesses": [
            {
                "op": access.op,
                "text_head": access.what,
                "stream": list(access.stream),
                "is_write": access.is_write,
                "number": access.number,
                "place": list(access.place) if access.place else None,
                "stack": _stack(access.stack),
            }
            for access in (race.first, race.second)
        ],
    }


def _stack(stack: traceback.StackSummary) -> str:
    """Return a stack as text, without the frames that have started the program."""
    starts = [place for place, frame in enumerate(stack) if frame.filename == "<frozen runpy>"]
    return "".join(traceback.StackSummary.from_list(list(stack)[starts[-1] + 1 if starts else 0 :]).format())
