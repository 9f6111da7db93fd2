# SPDX-License-Identifier: BSD-3-Clause
"""`outboard test`."""

from __future__ import annotations

import subprocess
import sys

import click

__all__ = ["test"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("driver")
@click.option("--option", "-o", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@click.argument("pytest_arguments", nargs=-1, type=click.UNPROCESSED)
def test(driver: str, options: tuple[str, ...], pytest_arguments: tuple[str, ...]) -> None:
    """Run the driver tests: what every driver must do, through torch's public API.

    DRIVER is an installed driver's name, or "package.module:Class". What follows is pytest's: outboard test NAME -x -k
    streams. Exits with pytest's status.
    """
    from torch_outboard.cli.info import parse_options
    from torch_outboard.testing import driver_test_command

    try:
        command = driver_test_command(driver, parse_options(options), pytest_arguments or ("-q",))
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(subprocess.run(command).returncode)
