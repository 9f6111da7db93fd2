# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels check`: the figures of a bring-up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torch_outboard.cli.output import check_names, check_pattern, json_to, printable, progress, table

if TYPE_CHECKING:
    from torch_outboard.kernels.bringup import Figure  # imports torch, which `outboard --help` must not wait for
    from torch_outboard.testing.database.check import EntryResult

__all__ = ["check"]

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")
# The maximum numbers of bad entries and of refusal reasons that are printed.
_MAX_LINES = 20
_MAX_REASONS = 8


@click.command()
@click.option("--driver", required=True, metavar="NAME", help="Check this driver's first device.")
@click.option("--option", "-o", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@click.option(
    "--only", default="", metavar="REGEX", help="Only entries whose name matches, such as 'nn.functional.gelu'."
)
@click.option(
    "--dtypes",
    default="float32,bfloat16,int64",
    show_default=True,
    metavar="LIST",
    help="Dtypes of the entries, or all.",
)
@click.option("--gradients", is_flag=True, help="Check gradients too.")
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True, help="Samples of each entry.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that run entries.")
@click.option("--entries/--no-entries", default=True, help="Run the operator database, or skip it.")
@click.option("--figures/--no-figures", default=True, help="Measure speeds, or skip that.")
@click.option(
    "--side",
    type=click.IntRange(min=16),
    default=4096,
    show_default=True,
    help="Rows and columns of the measured matrices. Memory for three float32 matrices is needed.",
)
@click.option("--json", "target", type=click.Path(path_type=Path, dir_okay=False), help="Write the details to a file.")
def check(
    driver: str,
    options: tuple[str, ...],
    only: str,
    dtypes: str,
    gradients: bool,
    samples: int,
    jobs: int,
    entries: bool,
    figures: bool,
    side: int,
    target: Path | None,
) -> None:
    """Check generated kernels: torch's operator database against the CPU, and their share of the device's speed.

    Only generated kernels run: neither the driver's own kernels nor the CPU's. Entries run in other processes, so that
    a crash loses one entry only. Exits with 1 if a value is wrong, a kernel fails or a bar is missed.
    """
    from torch_outboard._errors import NotSupportedError, RegistrationError
    from torch_outboard.cli.info import parse_options
    from torch_outboard.testing import check_installed

    settings = parse_options(options)
    chosen = _chosen(dtypes)
    check_pattern(only)
    from torch_outboard.kernels.generated_only import attach_generated_only  # torch is imported by now

    try:
        if entries:
            check_installed("checks of the operator database", "numpy", "expecttest")
        device = attach_generated_only(driver, settings)
    except (ModuleNotFoundError, NotSupportedError, RegistrationError) as error:
        raise click.ClickException(str(error)) from error
    checked: list[EntryResult] = []
    measured: list[Figure] = []
    failure = ""
    is_whole = True
    if entries:
        checked, is_whole = _run_entries(driver, settings, only, chosen, gradients, samples, jobs)
        _print_entries(checked)
    if figures and is_whole:
        from torch_outboard.kernels.bringup import figures as measure

        try:
            with progress("measuring") as step:
                for figure in measure(device, side):
                    measured.append(figure)
                    step(figure.name)
        except Exception as error:  # noqa: BLE001 - the command reports any failure of the driver's kernels
            failure = f"{type(error).__name__}: {error}"
        _print_figures(measured, failure)
    is_good = (
        is_whole
        and not any(entry.is_bad for entry in checked)
        and all(figure.is_reached for figure in measured)
        and not failure
    )
    if target is not None:
        json_to(target, _report(device, checked, measured, failure))
    if not is_good:
        raise SystemExit(1)


def _chosen(text: str) -> list[Any]:
    names = _DTYPES if text == "all" else text.split(",")
    check_names(names, _DTYPES, "--dtypes", also=("all",))
    import torch

    return [getattr(torch, name) for name in names]


def _run_entries(
    driver: str, options: dict[str, str], only: str, dtypes: Sequence[Any], gradients: bool, samples: int, jobs: int
) -> tuple[list[EntryResult], bool]:
    """Return the results, and whether all entries were checked."""
    from torch_outboard.testing.children import HANG_SECONDS
    from torch_outboard.testing.database.check import check as run
    from torch_outboard.testing.database.check import entry_checks

    todo = entry_checks(dtypes, only, gradients)
    if not todo:
        raise click.BadParameter(f"no entry's name matches {only!r}", param_hint="--only")
    entries: list[EntryResult] = []
    with progress("operator database", len(todo)) as step:
        try:
            for entry in run(todo, driver, options, samples, jobs, HANG_SECONDS):
                entries.append(entry)
                step(entry.check.entry)
        except KeyboardInterrupt:  # a run takes long, so report the results so far
            click.echo(f"interrupted: {len(entries)} of {len(todo)} entries were checked", err=True)
    order = {name: place for place, name in enumerate(todo)}
    return sorted(entries, key=lambda entry: order[entry.check]), len(entries) == len(todo)


def _print_entries(entries: Sequence[EntryResult]) -> None:
    groups: dict[str, list[EntryResult]] = {}
    for entry in entries:
        groups.setdefault(f"{entry.check.dtype}{', gradients' if entry.check.is_gradient else ''}", []).append(entry)
    rows = []
    for name, ones in groups.items():
        states = Counter(entry.state for entry in ones)
        failed = states["failed"] + states["crash"] + states["hang"]
        counts = (len(ones), states["right"], states["ran"], states["refused"], states["wrong"], failed)
        rows.append((name, *counts))
    heads = ("type", "entries", "right", "only run", "no kernels", "wrong", "failed")
    table("Operator database", heads, rows)
    bad = [entry for entry in entries if entry.is_bad]
    for entry in bad[:_MAX_LINES]:
        of = f"{entry.check.dtype}{', gradients' if entry.check.is_gradient else ''}"
        click.echo(printable(f"{entry.state}: {entry.check.entry} ({of}): {entry.gist}"))
    if len(bad) > _MAX_LINES:
        click.echo(f"and {len(bad) - _MAX_LINES} more; --json FILE lists all")
    reasons = Counter(entry.gist for entry in entries if entry.state == "refused")
    if reasons:
        click.echo("\nMost frequent reasons for no kernels")
    for reason, count in reasons.most_common(_MAX_REASONS):
        click.echo(printable(f"{count:5} {reason}"))
    if reasons:
        click.echo("")


def _print_figures(measured: Sequence[Figure], failure: str) -> None:
    rows = []
    for figure in measured:
        bar = "" if figure.bar is None else f"{'≥' if figure.is_least else '≤'} {_amount(figure.bar, figure.unit)}"
        reached = "" if figure.bar is None else "yes" if figure.is_reached else "no"
        rows.append((figure.name, _amount(figure.value, figure.unit), bar, reached))
    table("Figures", ("figure", "measured", "target", "reached"), rows)
    if failure:
        click.echo(printable(f"The rest could not be measured: {failure}"))


def _amount(value: float, unit: str) -> str:
    return f"{value:.0%}" if unit == "" else f"{value:.3g} {unit}"


def _report(device: Any, entries: Sequence[EntryResult], measured: Sequence[Figure], failure: str) -> dict[str, Any]:
    import torch

    from torch_outboard._version import __version__

    return {
        "outboard": __version__,
        "torch": str(torch.__version__),
        "device": _about(device),
        "entries": [entry.as_row() for entry in entries],
        "figures": [
            {
                "name": figure.name,
                "value": figure.value,
                "unit": figure.unit,
                "bar": figure.bar,
                "is_reached": figure.is_reached,
            }
            for figure in measured
        ],
        "failure": failure,
    }


def _about(device: Any) -> dict[str, str]:
    import torch

    properties = torch.get_device_module(device).get_device_properties(device)
    return {name: getattr(properties, name) for name in ("name", "architecture", "driver_version", "machine")}
