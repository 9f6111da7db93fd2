# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels`: the plans of generated kernels that are stored on disk, and packs of them."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torch_outboard.cli.kernels_check import check
from torch_outboard.cli.kernels_explain import explain
from torch_outboard.cli.kernels_pack import pack
from torch_outboard.cli.kernels_tune import tune
from torch_outboard.cli.kernels_warm import warm
from torch_outboard.cli.output import print_plan, printable
from torch_outboard.cli.torch_first import import_torch

if TYPE_CHECKING:
    from torch_outboard.kernels.disk.files import Entry  # imports torch, which `outboard --help` must not wait for

__all__ = ["kernels"]


@click.group()
def kernels() -> None:
    """Check and explain generated kernels, show or remove the stored ones, or build packs of them."""


kernels.add_command(check)
kernels.add_command(explain)
kernels.add_command(pack)
kernels.add_command(tune)
kernels.add_command(warm)


def _folder() -> Path:
    import_torch()
    from torch_outboard.kernels.disk.store import VARIABLE, default_folder

    folder = default_folder()
    if folder is None:
        raise click.ClickException(f"plans are not stored: {VARIABLE} is empty, or there is no home folder")
    return folder


@kernels.command("list")
@click.argument("operator", default="")
@click.option("--source", is_flag=True, help="Print the plans and the kernels' source.")
@click.option("--pack", type=click.Path(path_type=Path), metavar="FILE", help="List the plans of a pack instead.")
def show(operator: str, source: bool, pack: Path | None) -> None:
    """List the plans for calls, and the packs of installed drivers.

    OPERATOR restricts the list to operators whose name contains this text.

    The list covers plans of the installed PyTorch and of this package's code; plans of other versions are only counted.
    The sizes belong to the call that a plan was made for. A plan's guards state the calls that it is valid for.
    """
    import_torch()
    from torch_outboard.kernels.disk.pack_file import DamagedPack
    from torch_outboard.kernels.disk.packs import read_pack
    from torch_outboard.kernels.disk.removal import programs_in
    from torch_outboard.kernels.disk.store import MAX_FILES, Store

    if pack is not None:
        opened = read_pack(pack)
        try:
            _list(opened.file.entries() if opened.file else iter(()), operator, source, _of_pack(opened))
        except DamagedPack as error:
            raise click.ClickException(str(error)) from error
        return
    folder = _folder()
    store = Store(folder)
    others = len(_versions(folder)) - (1 if store.is_usable else 0)
    more = f", beside those of {others} other versions" if others > 0 else ""
    entries = list(store.entries())
    _list(iter(entries), operator, source, f"in {printable(str(folder))}{more}")
    if programs := programs_in(folder):
        click.echo(
            f"{len(programs)} compiled programs, {sum(program.lstat().st_size for program in programs) / 1024:.0f} KiB"
        )
    today = [_count_built_today([entry.path for entry in entries]), _count_built_today(programs)]
    click.echo(
        f"built today: {today[0]} plans, {today[1]} programs; full to {len(entries) / MAX_FILES:.0%} with plans and "
        f"to {len(programs) / MAX_FILES:.0%} with programs (at most {MAX_FILES} each; the oldest are removed)"
    )
    if dropped := store.dropped():
        click.echo(printable(f"{len(dropped)} plans were dropped and built again, the last one {dropped[-1]}"))
    for line in (*_packs(), *_tables(folder)):
        click.echo(line)


def _list(entries: Iterator[Entry], operator: str, source: bool, where: str) -> None:
    chosen = sorted(
        (entry for entry in entries if operator in entry.key.get("operator", "")),
        key=lambda entry: (entry.key.get("operator", ""), str(entry.key.get("arguments")), entry.sizes),
    )
    for entry in chosen:
        click.echo(_line(entry))
        if source:
            _print_source(entry)
    click.echo(f"{len(chosen)} plans, {sum(entry.size for entry in chosen) / 1024:.0f} KiB, {where}")


def _count_built_today(paths: list[Path]) -> int:
    midnight = datetime.datetime.combine(datetime.date.today(), datetime.time()).timestamp()
    return sum(path.lstat().st_mtime >= midnight for path in paths)


def _packs() -> Iterator[str]:
    """Yield a line for each pack of an installed driver, or only for packs in OUTBOARD_KERNEL_PACKS if it is set."""
    from torch_outboard._discovery import found_drivers
    from torch_outboard._errors import RegistrationError
    from torch_outboard.kernels.disk.packs import VARIABLE, packs_of, read_pack

    drivers = {VARIABLE: None} if VARIABLE in os.environ else dict(found_drivers())
    for name, driver in drivers.items():
        try:
            files = packs_of(None if driver is None else driver.load())
        except RegistrationError as error:
            yield printable(f"the packs of {name} are unknown: {error}")
            continue
        for file in files:
            yield f"a pack of {name}, {_of_pack(read_pack(file))}"


def _tables(folder: Path) -> Iterator[str]:
    """Yield a line for each device with tuned schedules."""
    from torch_outboard.kernels.tune.schedule_table import tables_in

    for table in tables_in(folder):
        of = f" of {table.device['name']} ({table.device['machine']})" if table.device else ""
        used = f"not used, {table.obstacle}" if table.obstacle else f"{len(table.schedules)} of them"
        yield printable(f"tuned schedules{of}, in {table.path}: {used}")


def _of_pack(pack: Any) -> str:
    about = pack.about
    details = f" for {_devices_of(about)}, {about['plans']} plans, {about['programs']} programs" if about else ""
    return printable(f"in {pack.path}{details}{f': not used, {pack.obstacle}' if pack.obstacle else ''}")


def _devices_of(about: Any) -> str:
    names: dict[str, list[str]] = {}
    for device in about["devices"]:
        of = names.setdefault(f"{device['kind']['generator']} on machines {device['kind']['machine']!r}", [])
        of += filter(None, [device["architecture"]])
    return " and ".join(f"{of} of {', '.join(archs)}" if archs else of for of, archs in names.items())


def _versions(folder: Path) -> list[Path]:
    from torch_outboard.kernels.disk.files import versions_in

    try:
        return versions_in(folder)
    except OSError as error:
        raise click.ClickException(printable(f"{error}")) from error


@kernels.command()
@click.option("--dry-run", is_flag=True, help="Show what would be removed, without removing it.")
def clear(dry_run: bool) -> None:
    """Remove the plans of all versions, and the compiled programs.

    The command recognizes files by their names and does not follow links. It leaves all other files, and names them.
    """
    from torch_outboard.kernels.disk.removal import clear_folder, content_of

    folder = _folder()
    try:
        contents = content_of(folder)
        where = printable(str(folder))
        summary = f"the plans of {len(contents.versions)} versions, and {len(contents.programs)} compiled programs"
        if dry_run:
            click.echo(f"would remove {summary}, in {where}")
        else:
            click.echo(f"removing {summary}, in {where}")
            contents = clear_folder(folder)
    except OSError as error:
        raise click.ClickException(printable(f"{error}")) from error
    for path in contents.others:
        click.echo(printable(f"left {path}, which is neither a plan nor a program"))


def _line(entry: Entry) -> str:
    from torch_outboard.kernels.reasons import explained

    if entry.answer is None:
        return printable(entry.obstacle)
    kernels, refusal = entry.answer.kernels, entry.answer.refusal
    sizes = iter(entry.sizes)
    arguments = ", ".join(_argument(argument, sizes) for argument in entry.key["arguments"])
    result = f"none, {explained(refusal)}" if refusal else f"{len(kernels)} kernel{'' if len(kernels) == 1 else 's'}"
    tuned = ", with tuned schedules" if "schedules" in entry.key else ""
    return printable(f"{entry.key['operator']}({arguments}): {result}{tuned}")


def _argument(argument: Any, sizes: Iterator[Any]) -> str:
    """Return an argument from a key of `key_of` in readable form; a tensor takes the next sizes."""
    match argument:
        case ["tensor", str(dtype), int(), str(place)]:
            return f"{dtype.removeprefix('torch.')}{next(sizes, ['[?]'])[0]}{' on the CPU' if place == 'cpu' else ''}"
        case ["read", kind]:
            return f"any {kind}"
        case ["float", str(text)]:
            return repr(float.fromhex(text))
        case ["list", list(values)]:
            return f"[{', '.join(_argument(item, sizes) for item in values)}]"
        case [_, value]:
            return str(value)
    return str(argument)


def _print_source(entry: Entry) -> None:
    if entry.answer is None:
        return
    kind = entry.key["kind"]
    click.echo(printable(f"  for machines {kind['machine']!r}, by {kind['generator']}"))
    print_plan(entry.answer.text, entry.answer.kernels)
