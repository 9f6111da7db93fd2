# SPDX-License-Identifier: BSD-3-Clause
"""`outboard test`: runs the driver tests, torch's operator database, or the program below torch."""

from __future__ import annotations

import subprocess
import sys

import click

from torch_outboard.cli.torch_first import import_torch

__all__ = ["test"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("driver")
@click.option("--option", "-o", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@click.option("--operators", is_flag=True, help="Run torch's operator database instead, and compare with the CPU.")
@click.option("--native", is_flag=True, help="Compile and run a program that tests the library without torch.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Time limit of one test. After it, all stacks are printed and the process ends. 0: none. [default: 300]",
)
@click.argument("pytest_arguments", nargs=-1, type=click.UNPROCESSED)
def test(
    driver: str,
    options: tuple[str, ...],
    operators: bool,
    native: bool,
    time_limit: float | None,
    pytest_arguments: tuple[str, ...],
) -> None:
    """Run the driver tests: what every driver must do, through torch's public API.

    DRIVER is an installed driver's name, or "package.module:Class". Options that are not listed below are passed to
    pytest, like everything after "--": outboard test NAME -x -k streams, outboard test NAME test_streams.py, outboard
    test NAME -- -o log_cli=1. With --native, names of tests follow. Exits with the status of pytest, or of the program.

    The last lines report what passed, which missing capabilities caused skips, what the driver lacks and what that
    costs users, and what to do next.
    """
    from torch_outboard.cli.info import parse_options

    if driver.startswith("-"):
        raise click.UsageError(f"expected a driver's name before {driver}, as in: outboard test NAME {driver} …")
    if operators and native:
        raise click.UsageError("use either --operators or --native, not both")
    settings = parse_options(options)
    if native:
        if time_limit is not None:
            raise click.UsageError("--time-limit limits the Python tests and has no effect with --native")
        sys.exit(_native(driver, settings, pytest_arguments))
    sys.exit(_pytest(driver, settings, pytest_arguments, operators, time_limit))


def _pytest(
    driver: str, options: dict[str, str], arguments: tuple[str, ...], operators: bool, time_limit: float | None
) -> int:
    from torch_outboard.testing import TIME_LIMIT, driver_test_command, driver_test_environment

    limit = TIME_LIMIT if time_limit is None else time_limit
    try:
        command = driver_test_command(driver, options, arguments or ("-q",), operators=operators, time_limit=limit)
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from error
    process = subprocess.Popen(command, env=driver_test_environment())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # pytest receives the interrupt too, and ends with a report of the tests that ran
            continue


def _native(driver: str, options: dict[str, str], arguments: tuple[str, ...]) -> int:
    import_torch()
    from torch_outboard._errors import RegistrationError
    from torch_outboard.testing import run_native_tests

    try:
        return run_native_tests(driver, options, arguments)
    except (RegistrationError, FileNotFoundError, subprocess.CalledProcessError) as error:
        raise click.ClickException(str(error)) from error
