# SPDX-License-Identifier: BSD-3-Clause
"""`outboard race`: finds missing waits of a program, without the hardware."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from torch_outboard.cli.attached import driver_with_schedules
from torch_outboard.cli.output import json_to, progress
from torch_outboard.cli.run import for_cuda
from torch_outboard.cli.search import check_folders, printable_lines, run_search
from torch_outboard.cli.torch_first import import_torch

__all__ = ["race"]

USAGE = 2


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--driver", help="The driver whose devices the program uses. [default: the one with schedules]")
@click.option("--seeds", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Number of schedules.")
@click.option("--depth", type=click.IntRange(1, 64), help="Depth of the races to look for. [default: from the seed]")
@click.option("--schedule", metavar="pct:SEED", help="Run this schedule only, as a report names it.")
@click.option("--changes", type=click.IntRange(min=0), help="Limit the changes of ranks in that schedule.")
@click.option("--jobs", "-j", type=click.IntRange(1, 256), help="Processes at a time. [default: the number of cores]")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of one run.",
)
@click.option("--own-folder", is_flag=True, help="Run each process in its own temporary folder, if it writes files.")
@click.option(
    "--stdin", type=click.Path(exists=True, dir_okay=False), help="Standard input of the program. [default: empty]"
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON.")
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as a page."
)
@for_cuda
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def race(
    is_module: bool,
    as_cuda: bool,
    capability: tuple[int, int],
    script: str,
    arguments: tuple[str, ...],
    **options: Any,
) -> None:
    """Run a program under the stream sanitizer and many schedules, and report the first difference.

    The program runs twice in the order of its calls, once under the sanitizer, and then once for each seed, in other
    orders that a device may choose. Its output, the tensors that it passes to torch_outboard.testing.observe, and its
    exit status are compared. Stops at the first difference, and prints the two accesses and the missing line of code.

    Exits with 0 if there is no difference and no report of the sanitizer, with 1 for a race, with 2 for wrong usage,
    and with 3 if the program fails in the order of its calls.
    """
    import_torch()
    from torch_outboard.race.runs import Program

    if not is_module and not os.path.isfile(script):
        raise click.UsageError(f"there is no file {script!r}; to run a module, as with python -m, add -m")
    kind = "module" if is_module else "script"
    sys.exit(run(Program(kind, script, arguments, capability if as_cuda else None), **options))


def run(
    program: Any,
    driver: str | None,
    seeds: int,
    depth: int | None,
    schedule: str | None,
    changes: int | None,
    jobs: int | None,
    time_limit: float,
    own_folder: bool,
    stdin: str | None,
    json_file: Path | None,
    html_file: Path | None,
) -> int:
    """Search, print and write the report, and return the exit status."""
    from torch_outboard.race import page, report
    from torch_outboard.race.runs import Runner
    from torch_outboard.race.search import search

    plan = _plan(program, driver, seeds, depth, schedule, changes)
    count = min(jobs or os.cpu_count() or 1, len(plan.seeds) + 1)
    check_folders(json_file, html_file)
    runner = Runner(plan.driver, plan.name, count, time_limit, own_folder, stdin or "")

    def with_progress() -> Any:
        with progress("runs", len(plan.seeds) + 2, shows_left=True) as step:
            return search(plan, runner, count, step)

    finding = run_search(runner, with_progress)
    if isinstance(finding, int):
        return finding
    click.echo(printable_lines(report.as_text(finding)))
    try:
        if json_file is not None:
            json_to(json_file, report.as_json(finding))
        if html_file is not None:
            html_file.write_text(page.page(finding), encoding="utf-8")
    except (OSError, click.ClickException) as error:  # would exit with 1, the status for a race
        raise click.UsageError(f"the report can't be written: {error}") from error
    return report.status_of(finding)


def _plan(
    program: Any, driver: str | None, seeds: int, depth: int | None, schedule: str | None, changes: int | None
) -> Any:
    from torch_outboard._discovery import find_driver
    from torch_outboard._errors import RegistrationError
    from torch_outboard.race.search import Plan

    if changes is not None and schedule is None:
        raise click.UsageError("--changes needs --schedule, which names the schedule to shorten")
    try:
        name = driver or driver_with_schedules()
        driver_class = find_driver(name)
    except (RegistrationError, ImportError) as error:
        raise click.UsageError(str(error)) from error
    if "schedule" not in driver_class.options:
        raise click.UsageError(
            f"the driver {name!r} has no option 'schedule', so its work always runs in the same order"
        )
    chosen = tuple(range(seeds)) if schedule is None else (_seed(schedule),)
    return Plan(program, name, driver_class.name, frozenset(driver_class.options), chosen, depth, changes)


def _seed(schedule: str) -> int:
    kind, _, seed = schedule.partition(":")
    if kind != "pct" or not seed.isdecimal():
        raise click.UsageError(f"--schedule must be pct:SEED, such as pct:7, not {schedule!r}")
    return int(seed)


def run_for_pytest(arguments: list[str], named_options: dict[str, Any]) -> int:
    """Do the same for the tests that these arguments of pytest name, and return the exit status."""
    from torch_outboard.race.runs import Program

    files = {f"{name}_file": Path(file) if (file := named_options.pop(name)) else None for name in ("json", "html")}
    options: dict[str, Any] = {**named_options, **files, "own_folder": False, "stdin": None}
    try:
        return run(Program("pytest", "pytest", tuple(arguments)), **options)
    except click.ClickException as error:
        error.show()
        return USAGE
