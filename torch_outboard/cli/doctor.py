# SPDX-License-Identifier: BSD-3-Clause
"""`outboard doctor`: what on this machine keeps programs, and the libraries they use, from a driver's device."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import click

from torch_outboard._check import Check
from torch_outboard.cli.attached import driver_with_schedules
from torch_outboard.cli.info import parse_options
from torch_outboard.cli.shown import check_names, printable
from torch_outboard.cli.torch_first import import_torch

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
    from torch_outboard.doctor.libraries import ASKED

    check_names(libraries, ASKED, "--library")
    settings = parse_options(options)
    if report:
        _report(driver, settings, as_json)
        return
    found = []
    for check in _checks(driver, settings, use, libraries, no_libraries):
        found.append(check)
        if not as_json:
            _print(check)
    wrong = sum(check.state == "wrong" for check in found)
    if as_json:
        click.echo(json.dumps({"checks": [check._asdict() for check in found], "wrong": wrong}, indent=2))
    else:
        click.echo(f"{len(found)} checks, {wrong} wrong.")
    sys.exit(1 if wrong else 0)


def _report(driver: str | None, options: dict[str, str], as_json: bool) -> None:
    from torch_outboard.doctor.report import lines_of, report_of

    if driver is None:
        raise click.UsageError("--report needs --driver: it is the driver's own report")
    told = report_of(driver, options)
    if told is None:
        raise click.ClickException(f"the driver {driver!r} has no report; leave --report out")
    if as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        for line in lines_of(told):
            click.echo(printable(line))
    if "error" in told:
        sys.exit(1)


def _checks(
    driver: str | None, options: dict[str, str], use: bool, libraries: tuple[str, ...], no_libraries: bool
) -> Iterator[Check]:
    from torch_outboard.doctor import machine

    build = machine.check_build()
    yield build
    yield from machine.check_autoload()
    if build.state == "wrong":  # nothing else can be attached
        return
    import_torch()
    wanted = driver or _wanted()
    yield from machine.check_environment()
    device = yield from _drivers(wanted, options, is_alone=driver is not None)
    if device is None or no_libraries:
        return
    from torch_outboard.doctor.libraries import Asking, check_groups, check_libraries

    asking = Asking(wanted, options, device, use)
    yield from check_libraries(asking, libraries or None)
    yield from check_groups(asking, libraries or None)


def _wanted() -> str:
    """Return the driver that a program here gets: the attached one, else the one with schedules."""
    from torch_outboard._attach import attached_driver

    attached = attached_driver()
    return driver_with_schedules() if attached is None else attached.name


def _drivers(wanted: str, options: dict[str, str], is_alone: bool) -> Generator[Check, None, str | None]:
    """Attach each driver in a process of its own; return the device's name of the wanted one, None without a device."""
    from torch_outboard._discovery import found_drivers
    from torch_outboard.doctor.machine import check_driver, info_of

    others = [] if is_alone else found_drivers()
    names = [wanted, *(name for name in others if name != wanted and not _is_of(name, wanted))]
    device = None
    with ThreadPoolExecutor(2) as pool:
        reports = pool.map(lambda name: info_of(name, options if name == wanted else {}), names)
        for name, (report, trouble) in zip(names, reports, strict=True):
            yield from check_driver(name, name == wanted, report, trouble)
            yield from _own_checks(name, name == wanted, options)
            if name == wanted and report is not None and report["attached"]["devices"]:
                device = report["attached"]["device"]
    return device


def _is_of(name: str, wanted: str) -> bool:
    """Return True if the wanted driver was named by its devices' name."""
    from torch_outboard._discovery import found_drivers
    from torch_outboard._errors import RegistrationError

    try:
        return found_drivers()[name].load().name == wanted
    except RegistrationError:  # told by attaching it
        return False


def _own_checks(name: str, is_wanted: bool, options: dict[str, str]) -> Iterable[Check]:
    """Yield what the driver itself says, in a process of its own."""
    from torch_outboard.doctor.own_checks import own_checks

    for check in own_checks(name, options if is_wanted else {}):
        # What is broken for a driver that nobody asked for stops nobody.
        yield check if is_wanted or check.state != "wrong" else check._replace(state="unused")


def _print(check: Check) -> None:
    click.echo(printable(f"{_MARKS[check.state]}  {check.subject}: {check.found}"))
    if check.remedy and check.state != "right":
        click.echo(printable(f"        -> {check.remedy}"))
