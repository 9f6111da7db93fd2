# SPDX-License-Identifier: BSD-3-Clause
"""One run of a program, in its own process.

The results are written to a file as JSON, however the program ends, unless the program ends its process itself.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_outboard.race.after_failure import describe_end

_MAX_TASKS = 400  # tasks shown in a picture
_MAX_POISONED_BLOCKS = 5000  # most recently freed blocks


def main(path: str) -> None:
    """Run the program of a request, a JSON file, and exit with the program's status."""
    request = json.loads(Path(path).read_text(encoding="utf-8"))
    os.setsid()  # so that the program's child processes can be ended together with it
    Path(request["process"]).write_text(str(os.getpid()), encoding="utf-8")
    os.chdir(request["folder"])
    if request["stdin"]:
        with open(request["stdin"], "rb") as file:
            os.dup2(file.fileno(), 0)
    sys.path[:] = [folder for folder in sys.path if folder]  # "" is this process's folder, not the program's

    import torch

    import torch_outboard
    from torch_outboard import sanitizer
    from torch_outboard.testing import observed

    process = os.getpid()
    log = None

    def begin() -> None:
        nonlocal log
        torch_outboard.attach(request["driver"])
        if request["as_cuda"]:
            from torch_outboard.as_cuda import start

            start(capability=tuple(request["as_cuda"])).attach_in_children(request["driver"])
        if request["sanitizes"]:
            log = sanitizer.enable_with_log()
            os.environ["OUTBOARD_SANITIZER"] = "1"  # for processes that the program spawns
        _seed(torch)
        observed.record()

    end = _run(request, begin)
    if os.getpid() != process:  # a forked child of the program also gets here
        os._exit(end.status)
    if log is not None:
        sanitizer.finish()  # before the wait below, which is not part of the program
    answer = {
        "observed": [[observation.name, observation.digest, observation.shown] for observation in observed.take()],
        "options": {name: str(value) for name, value in _options().items()},
        "tests": end.tests,
        **({} if log is None else _sanitized(sanitizer, log)),
    }
    if request["is_faulted"]:
        answer |= {"error": end.error, "after": _probe_devices()}
    else:
        end = _wait(torch, end)
    answer |= {"status": end.status, "problem": end.problem}
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")
    sys.stdout.flush()
    sys.exit(end.status)


@dataclass
class _ProgramEnd:
    """How a program ended: its exit status, its traceback, and a description of the exception."""

    status: int = 0
    problem: str = ""
    error: dict[str, Any] | None = None
    tests: list[dict[str, Any]] = field(default_factory=list)


def _wait(torch: Any, end: _ProgramEnd) -> _ProgramEnd:
    try:
        torch.accelerator.synchronize()
    except Exception:  # noqa: BLE001 - any error left behind is part of the result
        return _ProgramEnd(end.status or 1, end.problem or traceback.format_exc())
    return end


def _probe_devices() -> dict[str, Any] | None:
    """Return the state that a failing call left behind, or None if the driver could not be attached."""
    from torch_outboard import attached_driver
    from torch_outboard.race.after_failure import probe_devices

    driver = attached_driver()
    if driver is None:
        return None
    import torch

    return probe_devices(torch.get_device_module(driver.name))


def _seed(torch: Any) -> None:
    random.seed(0)
    torch.manual_seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)


def _options() -> dict[str, Any]:
    from torch_outboard import attached_driver

    driver = attached_driver()
    return dict(driver.option_values) if driver is not None else {}


def _run(request: dict[str, Any], begin: Callable[[], None]) -> _ProgramEnd:
    """Attach the driver and run the program."""
    kind, target, arguments = request["kind"], request["target"], request["arguments"]
    end = _ProgramEnd()
    try:
        begin()
        if kind == "pytest":
            import pytest

            plugins = [_Results(end.tests)]
            end.status = int(pytest.main(["-p", "no:cacheprovider", *arguments], plugins=plugins))
            return end
        sys.argv = [target, *arguments]
        if kind == "module":
            sys.path.insert(0, os.getcwd())
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(target)))
            runpy.run_path(target, run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            end.status = error.code or 0
        else:
            print(error.code, file=sys.stderr)
            end.status, end.problem = 1, str(error.code)
        if end.status:
            end.error = describe_end(error)
    except BaseException as error:  # noqa: BLE001 - an interrupt also ends the program
        end.status, end.problem, end.error = 1, traceback.format_exc(), describe_end(error)
        print(end.problem, file=sys.stderr)
    return end


class _Results:
    """A pytest plugin that seeds each test, and records its outcome and its observations."""

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
            seen = [[observation.name, observation.digest, observation.shown] for observation in observed.take()]
            why = report.longreprtext if report.failed else ""
            self.tests.append(
                {"name": report.nodeid, "outcome": report.outcome, "when": report.when, "observed": seen, "why": why}
            )


def _sanitized(sanitizer: Any, log: Any) -> dict[str, Any]:
    races = sanitizer.races()
    entries = list(log.entries)
    poisoned = list(sanitizer.poisoned().items())
    return {
        "races": [_race(race) for race in races],
        "streams": len(log.streams),
        "steps": log.steps,
        "has_host_copies": log.host_copies > 0,
        "poisoned": {str(number): text for number, text in poisoned[-_MAX_POISONED_BLOCKS:]},
        "log": _around(entries, races),
    }


def _around(entries: list[Any], races: list[Any]) -> list[Any]:
    """Return the entries to show in a picture: around the first race, or else the first entries."""
    if len(entries) > _MAX_TASKS and races:
        first, last = races[0].first.number, races[0].second.number
        near = [
            entry for entry in entries if first - 40 <= entry[1] <= first + 150 or last - 150 <= entry[1] <= last + 40
        ]
        return near[:_MAX_TASKS]
    return entries[:_MAX_TASKS]


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
    """Return a stack as text, without the frames that started the program."""
    starts = [place for place, frame in enumerate(stack) if frame.filename == "<frozen runpy>"]
    return "".join(traceback.StackSummary.from_list(list(stack)[starts[-1] + 1 if starts else 0 :]).format())
