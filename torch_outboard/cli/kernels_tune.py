# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels tune`: schedules that suit a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torch_outboard.cli.output import check_names, check_pattern, json_to, printable, progress, table
from torch_outboard.cli.torch_first import import_torch
from torch_outboard.kernels.tune.schedules import DTYPES

if TYPE_CHECKING:
    from torch_outboard.kernels.tune.measuring import Choice

__all__ = ["tune"]


@click.command()
@click.option("--driver", required=True, metavar="NAME", help="Tune for this driver's first device.")
@click.option("--option", "-o", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@click.option("--only", default="", metavar="REGEX", help="Only schedules whose name matches, such as 'attention'.")
@click.option("--dtypes", default="", metavar="LIST", help="Only these dtypes, such as float32,bfloat16.")
@click.option(
    "--size",
    type=click.IntRange(min=16),
    default=1024,
    show_default=True,
    help="Size of the calls: rows and columns of products, positions of attention, 16 times the side of images.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=9, show_default=True, help="Rounds of each measurement.")
@click.option("--reset", is_flag=True, help="Remove the stored schedules, and measure nothing.")
@click.option("--json", "target", type=click.Path(path_type=Path, dir_okay=False), help="Write the details to a file.")
def tune(
    driver: str,
    options: tuple[str, ...],
    only: str,
    dtypes: str,
    size: int,
    rounds: int,
    reset: bool,
    target: Path | None,
) -> None:
    """Measure schedules of products, convolutions and attention on a device, and store the fastest.

    The templates use the stored schedules from then on, also in other processes, which build new plans for them.
    Schedules that are not measured now keep their earlier choice. Nothing else should use the device meanwhile.
    """
    import_torch()
    from torch_outboard._errors import NotSupportedError, OutboardError
    from torch_outboard.cli.info import parse_options
    from torch_outboard.kernels.disk.store import VARIABLE, default_folder
    from torch_outboard.kernels.generated_only import attach_generated_only
    from torch_outboard.kernels.refusal import Refusal

    folder = default_folder()
    if folder is None:
        raise click.ClickException(f"tuned schedules cannot be stored: {VARIABLE} is empty, or there is no home folder")
    chosen = _chosen(dtypes)
    check_pattern(only)
    try:
        device = attach_generated_only(driver, parse_options(options))
    except OutboardError as error:
        raise click.ClickException(str(error)) from error
    from torch_outboard.kernels.tune import measuring, schedule_table

    try:
        if reset:
            is_there = schedule_table.remove(folder, device.index)
            click.echo("removed the tuned schedules" if is_there else "there were no tuned schedules")
            return
        choices: list[Choice] = []
        names = measuring.names_of(device, only, chosen)
        if not names:
            raise click.BadParameter(f"no schedule's name matches {only!r}", param_hint="--only")
        is_interrupted = False
        with progress("schedules", len(names), is_slow=True) as step:
            try:
                for choice in measuring.tune(device, names, size, rounds, lambda text: step(text, advance=0)):
                    choices.append(choice)
                    step(choice.name)
            except KeyboardInterrupt:
                is_interrupted = True
        _print(choices)
        now = {choice.name: dict(choice.schedule) for choice in choices if "" not in choice.refused}
        if not now:
            raise click.ClickException("no schedule could be measured, so none is stored")
        path = schedule_table.write(
            folder, device.index, {**schedule_table.read(folder, device.index).schedules, **now}
        )
    except (NotSupportedError, OSError, Refusal) as error:
        raise click.ClickException(str(error)) from error
    click.echo(printable(f"{len(now)} schedules are stored in {path}"))
    if target is not None:
        json_to(target, {"path": str(path), "schedules": [vars(choice) for choice in choices]})
    if is_interrupted:
        raise click.ClickException(f"interrupted: {len(choices)} of {len(names)} schedules were measured")


def _chosen(text: str) -> list[str]:
    names = text.split(",") if text else list(DTYPES)
    check_names(names, DTYPES, "--dtypes")
    return names


def _print(choices: Sequence[Choice]) -> None:
    rows = []
    for choice in choices:
        if "" in choice.refused:
            rows.append((f"{choice.name}: not measured, {choice.refused['']}", "", "", ""))
            continue
        schedule = ", ".join(f"{name} {value}" for name, value in choice.schedule.items())
        times = (_milliseconds(choice.before), _milliseconds(choice.seconds))
        rows.append((f"{choice.name}: {schedule}", *times, _saved_share(choice)))
    table("Schedules", ("schedule", "untuned", "tuned", "saved"), rows)
    for choice in choices:
        for variant, why in choice.refused.items():
            if variant:
                click.echo(printable(f"{choice.name}: {variant} is excluded, {why}"))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _saved_share(choice: Choice) -> str:
    return f"{1 - choice.seconds / choice.before:.0%}" if choice.seconds < choice.before else ""
