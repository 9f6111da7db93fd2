# SPDX-License-Identifier: BSD-3-Clause
"""`outboard run --fail-each`: runs a script once for each call of its driver, which fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from torch_outboard.cli.output import json_to, progress
from torch_outboard.cli.search import check_folders, printable_lines, run_search

__all__ = ["OPTIONS", "fail_each"]


_RUN_TIMEOUT_SECONDS = 60.0
_MAX_RUNS = 500

# The options of `outboard run` that need --fail-each.
OPTIONS = (
    click.option("--fail-each", is_flag=True, help="Run the script once for each driver call, with that call failing."),
    click.option(
        "--runs",
        type=click.IntRange(1, 10_000_000),
        default=_MAX_RUNS,
        show_default=True,
        help="Maximum number of runs.",
    ),
    click.option("--share", metavar="K/N", default="1/1", help="Run the K-th of N parts of the calls."),
    click.option(
        "--status", "statuses", multiple=True, help="Status of failing calls. [default: OUT_OF_MEMORY and DEVICE_LOST]"
    ),
    click.option("--rule", "rules", multiple=True, help="Run only this failure, as a report names it."),
    click.option(
        "--jobs", "-j", type=click.IntRange(1, 256), help="Processes at a time. [default: the number of cores]"
    ),
    click.option(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=True),
        default=_RUN_TIMEOUT_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="Time limit of one run.",
    ),
    click.option("--own-folder", is_flag=True, help="Run each process in its own temporary folder."),
    click.option(
        "--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON."
    ),
)


def fail_each(
    program: Any,
    driver: str,
    options: dict[str, str],
    runs: int,
    share: str,
    statuses: tuple[str, ...],
    rules: tuple[str, ...],
    jobs: int | None,
    time_limit: float,
    own_folder: bool,
    json_file: Path | None,
) -> int:
    """Sweep, print and write the report, and return the exit status."""
    from torch_outboard.race import fault_report
    from torch_outboard.race.faults import sweep
    from torch_outboard.race.runs import Runner

    plan, name = _plan(program, driver, options, runs, share, statuses, rules)
    check_folders(json_file)
    count = min(jobs or os.cpu_count() or 1, max(len(rules), 2) if rules else 256)
    runner = Runner(plan.driver, name, count, time_limit, own_folder)

    def with_bar() -> Any:
        with _Bar() as bar:
            return sweep(plan, runner, count, bar.start)

    outcome = run_search(runner, with_bar)
    if isinstance(outcome, int):
        return outcome
    click.echo(printable_lines(fault_report.as_text(outcome)))
    try:
        if json_file is not None:
            json_to(json_file, fault_report.as_json(outcome))
    except click.ClickException as error:  # would exit with 1, the status for a problem
        raise click.UsageError(str(error)) from error
    return fault_report.status_of(outcome)


class _Bar:
    """A progress bar that begins once the number of runs is known."""

    def __enter__(self) -> _Bar:
        self._shown: Any = None
        return self

    def start(self, count: int) -> Any:
        self._shown = progress("runs", count, shows_left=True)
        return self._shown.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._shown is not None:
            self._shown.__exit__(*error)


def _plan(
    program: Any,
    driver: str,
    options: dict[str, str],
    runs: int,
    share: str,
    statuses: tuple[str, ...],
    rules: tuple[str, ...],
) -> tuple[Any, str]:
    """Return the plan, and the name of the driver's devices."""
    from torch_outboard._discovery import find_driver
    from torch_outboard._errors import RegistrationError, Status
    from torch_outboard.race.counts import STATUSES
    from torch_outboard.race.faults import FaultPlan
    from torch_outboard.testing.share import Share

    try:
        driver_class = find_driver(driver)
        part = Share.parse(share)
    except (RegistrationError, ImportError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    if missing := {"fault", "fault_counts"} - {*driver_class.options}:
        raise click.UsageError(
            f"the driver {driver!r} has no option {min(missing)!r}, which --fail-each needs to make calls fail"
        )
    if unknown := {*options} - {*driver_class.options}:
        raise click.UsageError(f"the driver {driver!r} has no option {min(unknown)!r}")
    if reserved := {*options} & {"fault", "fault_counts"}:
        raise click.UsageError(f"--fail-each sets {min(reserved)!r} itself; name the failing call with --rule")
    if wrong := {*statuses} - {status.name for status in Status if status.name not in ("OK", "NOT_READY")}:
        raise click.UsageError(
            f"unknown status {min(wrong)!r}; use, for example, OUT_OF_MEMORY, INTERNAL or DEVICE_LOST"
        )
    chosen = {name: value for name, value in (("schedule", "inline"), ("poison", "1")) if name in driver_class.options}
    plan = FaultPlan(program, driver, {**chosen, **options}, statuses or STATUSES, runs, part, rules)
    return plan, driver_class.name
