# SPDX-License-Identifier: BSD-3-Clause
"""`outboard doctor`: finds what prevents programs and libraries on this machine from using a driver's device."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import click

from torch_outboard._check import Check
from torch_outboard.cli.attached import driver_with_schedules
from torch_outboard.cli.info import parse_options
from torch_outboard.cli.output import check_names, printable
from torch_outboard.cli.torch_first import import_torch
from torch_outboard.doctor import machine
from torch_outboard.doctor.libraries import REMEDIES, ProbeContext, check_groups, check_libraries
from torch_outboard.doctor.own_checks import own_checks

__all__ = ["doctor"]

_MARKS = {"right": "  ok  ", "unused": "  --  ", "wrong": " WRONG"}


@click.command()
@click.option("--driver", metavar="NAME", help="Check only this driver. [default: all]")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@click.option("--use", is_flag=True, help="Check the libraries with torch_outboard.integrations in use.")
@click.option("--library", "libraries", multiple=True, metavar="NAME", help="Check only this library. [default: all]")
@click.option("--no-libraries", is_flag=True, help="Check only the machine and the drivers.")
@click.option("--report", is_flag=True, help="Print what the developers of --driver ask of a machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(
    driver: str | None,
    options: tuple[str, ...],
    use: bool,
    libraries: tuple[str, ...],
    no_libraries: bool,
    report: bool,
    as_json: bool,
) -> None:
    """Check this machine, its drivers and its libraries, and suggest a remedy for each problem.

    Imports each installed library in a separate process, and checks which device it uses and whether two processes
    form one group. Exits with 1 if anything is wrong. docs/integrations.md explains the answers.
    """
    check_names(libraries, REMEDIES, "--library")
    settings = parse_options(options)
    if report:
        _report(driver, settings, as_json)
        return
    checks = []
    for check in _checks(driver, settings, use, libraries, no_libraries):
        checks.append(check)
        if not as_json:
            _print(check)
    wrong = sum(check.state == "wrong" for check in checks)
    if as_json:
        click.echo(json.dumps({"checks": [check._asdict() for check in checks], "wrong": wrong}, indent=2))
    else:
        click.echo(f"{len(checks)} checks, {wrong} wrong.")
    sys.exit(1 if wrong else 0)


def _report(driver: str | None, options: dict[str, str], as_json: bool) -> None:
    from torch_outboard.doctor.report import lines_of, report_of

    if driver is None:
        raise click.UsageError("--report needs --driver, because the report is the driver's own")
    report = report_of(driver, options)
    if report is None:
        raise click.ClickException(f"the driver {driver!r} has no report; omit --report")
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        for line in lines_of(report):
            click.echo(printable(line))
    if "error" in report:
        sys.exit(1)


def _checks(
    driver: str | None, options: dict[str, str], use: bool, libraries: tuple[str, ...], no_libraries: bool
) -> Iterator[Check]:
    build = machine.check_build()
    yield build
    yield from machine.check_autoload()
    if build.state == "wrong":  # nothing else can be attached
        return
    import_torch()
    wanted = driver or _default_driver()
    settings = {name: options if name == wanted else {} for name in _names(wanted, is_alone=driver is not None)}
    with _processes() as pool:
        reports = {name: pool.submit(machine.info_of, name, given) for name, given in settings.items()}
        own = {name: pool.submit(_own_checks, name, given, reports[name]) for name, given in settings.items()}
        yield from machine.check_environment()
        answers = []
        info, _ = reports[wanted].result()
        if info is not None and info["attached"]["devices"] and not no_libraries:
            answers = _answers(pool, ProbeContext(wanted, options, info["attached"]["device"], use), libraries)
        for name, report in reports.items():
            yield from machine.check_driver(name, name == wanted, *report.result())
            for check in own[name].result():
                # Problems of drivers that were not requested are not failures.
                yield check if name == wanted or check.state != "wrong" else check._replace(state="unused")
        for answer in answers:
            yield from answer.result()


@contextmanager
def _processes() -> Iterator[Executor]:
    """Return an executor for a few processes at a time: each imports torch, and some import large libraries."""
    pool = ThreadPoolExecutor(min(max(os.cpu_count() or 1, 2), 8))
    try:
        yield pool
    finally:  # processes that have not started, after Ctrl-C
        pool.shutdown(cancel_futures=True)


def _default_driver() -> str:
    """Return the driver that a program would use here: the attached driver, else the driver with schedules."""
    from torch_outboard._attach import attached_driver

    attached = attached_driver()
    return driver_with_schedules() if attached is None else attached.name


def _names(wanted: str, is_alone: bool) -> list[str]:
    """Return the drivers to attach, each in a separate process, with the wanted driver first."""
    from torch_outboard._discovery import found_drivers

    others = [] if is_alone else found_drivers()
    return [wanted, *(name for name in others if name != wanted and not _is_of(name, wanted))]


def _is_of(name: str, wanted: str) -> bool:
    """Return True if `wanted` is the name of this driver's devices."""
    from torch_outboard._discovery import found_drivers
    from torch_outboard._errors import RegistrationError

    try:
        return found_drivers()[name].load().name == wanted
    except RegistrationError:  # reported when the driver is attached
        return False


def _own_checks(name: str, options: dict[str, str], report: Future[machine.Report]) -> list[Check]:
    """Return the driver's own checks, made in a separate process if it has any."""
    from torch_outboard._discovery import find_driver
    from torch_outboard._errors import RegistrationError
    from torch_outboard.driver import Driver

    info, _ = report.result()
    if info is not None:  # importing the driver did not crash a process
        with suppress(RegistrationError):
            if find_driver(name).checks is Driver.checks:
                return []
    return own_checks(name, options)


def _answers(pool: Executor, context: ProbeContext, libraries: tuple[str, ...]) -> list[Future[list[Check]]]:
    """Check all libraries in one process, and each library's group in two processes."""

    def listed(check: Callable[[ProbeContext, Iterable[str]], Iterator[Check]], names: Iterable[str]) -> list[Check]:
        return list(check(context, names))

    names = libraries or tuple(REMEDIES)
    return [pool.submit(listed, check_libraries, names), *(pool.submit(listed, check_groups, [name]) for name in names)]


def _print(check: Check) -> None:
    click.echo(printable(f"{_MARKS[check.state]}  {check.subject}: {check.found}"))
    if check.remedy and check.state != "right":
        click.echo(printable(f"        -> {check.remedy}"))
