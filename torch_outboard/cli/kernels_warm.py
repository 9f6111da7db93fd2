# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels warm`: runs a script once, so that later processes find its kernels on disk."""

from __future__ import annotations

import sys
import time

import click

from torch_outboard.cli.attached import attach_for_plans
from torch_outboard.cli.output import printable
from torch_outboard.cli.script import run_script
from torch_outboard.cli.torch_first import import_torch

__all__ = ["warm"]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--driver", metavar="NAME", help="The driver to attach, if the script attaches none.")
@click.option("--option", "-o", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def warm(driver: str | None, options: tuple[str, ...], script: str, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT with its ARGUMENTS once, to store the plans and the programs that it needs.

    One training step with the shapes of later runs is enough. Exits with the script's status.
    """
    import_torch()
    import torch

    from torch_outboard import _C
    from torch_outboard.kernels import plan_statistics
    from torch_outboard.kernels.disk.removal import programs_in
    from torch_outboard.kernels.disk.store import VARIABLE, default_folder

    folder = default_folder()
    if folder is None:
        raise click.ClickException(f"plans are not stored: {VARIABLE} is empty, or there is no home folder")
    if driver is not None:
        attach_for_plans(driver, options)
    elif options:
        raise click.UsageError("--option needs --driver")
    begin, before = time.perf_counter(), len(programs_in(folder))
    status = run_script(script, arguments)
    if _C.is_attached():
        torch.accelerator.synchronize()  # so that the last programs are stored too
    counts = plan_statistics()
    built = f"{counts['saved']} plans and {len(programs_in(folder)) - before} programs were built"
    known = f"{counts['loaded'] + counts['packed']} plans were stored before"
    click.echo(printable(f"{built} in {time.perf_counter() - begin:.0f} s and {known}, in {folder}"), err=True)
    sys.exit(status)
