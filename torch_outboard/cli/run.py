# SPDX-License-Identifier: BSD-3-Clause
"""`outboard run`: runs a script with a driver attached, including scripts written for CUDA."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from torch_outboard.cli.attached import driver_with_schedules
from torch_outboard.cli.fail_each import OPTIONS, fail_each
from torch_outboard.cli.info import parse_options
from torch_outboard.cli.run_report import RunMonitor, with_reports
from torch_outboard.cli.script import run_script
from torch_outboard.cli.torch_first import import_torch

__all__ = ["CAPABILITY", "as_cuda_context", "for_cuda", "run"]

CAPABILITY = (9, 0)
_FOR_CUDA = (
    click.option("--as-cuda", is_flag=True, help="Present the device as cuda, for scripts that were written for CUDA."),
    click.option(
        "--capability",
        type=(int, int),
        default=CAPABILITY,
        show_default=True,
        metavar="MAJOR MINOR",
        help="With --as-cuda, the compute capability that torch.cuda reports.",
    ),
)


def for_cuda(command: Any) -> Any:
    """Add the options for programs that were written for CUDA to a command."""
    return _add_options(command, _FOR_CUDA)


def _add_options(command: Any, options: tuple[Any, ...]) -> Any:
    for option in reversed(options):
        command = option(command)
    return command


def _with_faults(command: Any) -> Any:
    return _add_options(command, OPTIONS)


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--driver", metavar="NAME", help="The driver to attach. [default: the installed driver that has schedules]"
)
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@for_cuda
@_with_faults
@with_reports
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    driver: str | None,
    options: tuple[str, ...],
    as_cuda: bool,
    capability: tuple[int, int],
    html_file: Path | None,
    no_use: bool,
    script: str,
    arguments: tuple[str, ...],
    **faults: Any,
) -> None:
    """Run SCRIPT with its ARGUMENTS on an attached driver, which the imported libraries use too.

    Reports at the end where its operators ran, slowest place first, what was built, and how long builds took. Exits
    with the script's status. docs/integrations.md lists the libraries, docs/as-cuda.md describes --as-cuda.

    With --fail-each, the script runs once for each driver call, with that call failing. Then it exits with 0 if each
    run ends with a device error or the right results, with 1 if a run does not, with 2 for wrong usage, and with 3 if
    the script fails by itself. docs/faults.md describes this.
    """
    import_torch()
    _check_faults(faults)
    if faults.pop("fail_each"):
        from torch_outboard.race.runs import Program

        program = Program("script", script, arguments, capability if as_cuda else None)
        sys.exit(fail_each(program, driver or driver_with_schedules(), parse_options(options), **faults))
    from torch_outboard._attach import attach, attached_driver
    from torch_outboard._errors import OutboardError

    try:
        context: Any = contextlib.nullcontext()
        if driver is not None or attached_driver() is None:
            attach(driver or driver_with_schedules(), **parse_options(options))
        if as_cuda:
            context = as_cuda_context(driver, capability)
        elif not no_use:
            from torch_outboard.integrations import use_all

            use_all()
    except (ImportError, OutboardError) as error:
        raise click.ClickException(str(error)) from error
    with RunMonitor(Path(script).name, html_file, faults["json_file"]) as monitor, context:
        status = run_script(script, arguments)
    monitor.print_report()
    sys.exit(status)


def _check_faults(faults: dict[str, Any]) -> None:
    """Raise click.UsageError for an option that needs --fail-each, which is not given."""
    source = click.get_current_context().get_parameter_source
    own = [name for name in faults if name != "json_file" and source(name) is ParameterSource.COMMANDLINE]
    if not faults["fail_each"] and own:
        name = {"statuses": "status", "rules": "rule"}.get(own[0], own[0])
        raise click.UsageError(f"--{name.replace('_', '-')} needs --fail-each")


def as_cuda_context(driver: str | None, capability: tuple[int, int] = CAPABILITY) -> Any:
    """Start as_cuda() with a driver; by default the attached driver, else the driver that has schedules.

    New Python processes that this process starts do the same.
    """
    from torch_outboard._attach import attached_driver
    from torch_outboard.as_cuda import start

    if driver is None and attached_driver() is None:
        driver = driver_with_schedules()
    running = start(driver, capability=capability)
    running.attach_in_children(driver or os.environ.get("OUTBOARD_DRIVER") or running.device_name)
    return running
