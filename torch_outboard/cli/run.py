# SPDX-License-Identifier: BSD-3-Clause
"""`outboard run`: runs a script with a driver attached, also one that was written for CUDA."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from torch_outboard.cli.attached import driver_with_schedules
from torch_outboard.cli.fail_each import OPTIONS, fail_each
from torch_outboard.cli.info import parse_options
from torch_outboard.cli.script import run_script
from torch_outboard.cli.torch_first import import_torch

if TYPE_CHECKING:
    from torch_outboard._coverage import Coverage  # imports torch

__all__ = ["CAPABILITY", "as_cuda_context", "for_cuda", "run"]

CAPABILITY = (9, 0)
_MOST_SHOWN = 8  # operators

_FOR_CUDA = (
    click.option("--as-cuda", is_flag=True, help="Call the device cuda: for a script that was written for CUDA."),
    click.option(
        "--capability",
        type=(int, int),
        default=CAPABILITY,
        show_default=True,
        metavar="MAJOR MINOR",
        help="With --as-cuda, the compute capability that torch.cuda answers.",
    ),
)


def for_cuda(command: Any) -> Any:
    """Give a command the options of programs that were written for CUDA."""
    return _with(command, _FOR_CUDA)


def _with(command: Any, options: tuple[Any, ...]) -> Any:
    for option in reversed(options):
        command = option(command)
    return command


def _with_faults(command: Any) -> Any:
    return _with(command, OPTIONS)


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--driver", metavar="NAME", help="The driver to attach. [default: the one that has schedules]")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@for_cuda
@_with_faults
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    driver: str | None,
    options: tuple[str, ...],
    as_cuda: bool,
    capability: tuple[int, int],
    script: str,
    arguments: tuple[str, ...],
    **faults: Any,
) -> None:
    """Run SCRIPT with its ARGUMENTS, with a driver attached.

    Ends with what ran elsewhere than on the device, and exits with the script's status. docs/as-cuda.md says what
    --as-cuda changes.

    With --fail-each, the script runs once for each call that it makes of the driver, which fails. Then it exits with 0
    if each run ends in an error of the device or with the right results, with 1 if one does not, with 2 for wrong
    usage, and with 3 if the script fails by itself. docs/faults.md says more.
    """
    import_torch()
    _check_faults(faults)
    if faults.pop("fail_each"):
        from torch_outboard.race.runs import Program

        program = Program("script", script, arguments, capability if as_cuda else None)
        sys.exit(fail_each(program, driver or driver_with_schedules(), parse_options(options), **faults))
    from torch_outboard._attach import attach, attached_driver
    from torch_outboard._coverage import coverage
    from torch_outboard._errors import OutboardError

    try:
        context: Any = contextlib.nullcontext()
        if driver is not None or attached_driver() is None:
            attach(driver or driver_with_schedules(), **parse_options(options))
        if as_cuda:
            context = as_cuda_context(driver, capability)
    except (ImportError, OutboardError) as error:
        raise click.ClickException(str(error)) from error
    with context:
        status = run_script(script, arguments)
    click.echo(_summary(coverage()), err=True)
    sys.exit(status)


def _check_faults(faults: dict[str, Any]) -> None:
    """Raise click.UsageError for an option that needs --fail-each, which is not given."""
    source = click.get_current_context().get_parameter_source
    if not faults["fail_each"] and (given := [name for name in faults if source(name) is ParameterSource.COMMANDLINE]):
        name = {"statuses": "status", "rules": "rule", "json_file": "json"}.get(given[0], given[0])
        raise click.UsageError(f"--{name.replace('_', '-')} needs --fail-each")


def as_cuda_context(driver: str | None, capability: tuple[int, int] = CAPABILITY) -> Any:
    """Start as_cuda() with a driver, by default the attached one, else the one that has schedules.

    The processes that this one starts afresh do the same.
    """
    from torch_outboard._attach import attached_driver
    from torch_outboard.as_cuda import start

    if driver is None and attached_driver() is None:
        driver = driver_with_schedules()
    running = start(driver, capability=capability)
    running.hand_down(driver or os.environ.get("OUTBOARD_DRIVER") or running.device_name)
    return running


def _summary(rows: Coverage) -> str:
    """Return where the calls ran, in a line, and the operators that copied their tensors to the CPU, worst first."""
    by_provider = {row.provider: 0 for row in rows}
    for row in rows:
        by_provider[row.provider] += row.calls
    calls = ", ".join(f"{count} {provider}" for provider, count in sorted(by_provider.items()))
    copied = sorted((row for row in rows if row.provider == "fallback"), key=lambda row: -row.calls)
    lines = [f"Calls of operators by provider: {calls or 'none'}."]
    if copied:
        shown = ", ".join(f"{row.op} {row.calls}" for row in copied[:_MOST_SHOWN])
        more = f", and {len(copied) - _MOST_SHOWN} more" if len(copied) > _MOST_SHOWN else ""
        lines.append(f"On copies on the CPU, which is slow: {shown}{more}.")
    return "\n".join(lines)
