# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels pack`: a file of kernels that a driver's package ships."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from torch_outboard.cli.attached import attach_for_plans, set_variables
from torch_outboard.cli.info import parse_options
from torch_outboard.cli.output import check_names, check_pattern, printable
from torch_outboard.cli.torch_first import import_torch

__all__ = ["pack"]

# Device kinds by architecture, their programs, and the failed calls and programs.
_PackContent = tuple[dict[str, dict[str, str]], Iterable[tuple[str, bytes]], list[tuple[str, str]]]


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--driver", required=True, metavar="NAME", help="The driver whose devices the kernels are for.")
@click.option("--option", "-o", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@click.option("--arch", default="", metavar="LIST", help="Compile for these, such as sm_80,sm_90, without a device.")
@click.option("--only", default="", metavar="REGEX", help="Only calls whose name matches, such as 'add float32'.")
@click.option("--dtypes", default="", metavar="LIST", help="Only calls of these dtypes, such as float32,int64.")
@click.option(
    "--calls",
    "lists",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Also use the calls of this list, from scripts/record_calls.",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Keep the results in this folder, so that an interrupted run can continue.",
)
def pack(
    file: Path,
    driver: str,
    options: tuple[str, ...],
    arch: str,
    only: str,
    dtypes: str,
    lists: tuple[Path, ...],
    keep: Path | None,
) -> None:
    """Build a pack, FILE: kernels for operators of common models, so that a driver's users need not generate them.

    With --arch the pack has compiled programs for each of these architectures, and no device is opened: only the
    driver's compiler runs. Drivers that cannot do this report what they lack. Without --arch the calls run on the
    driver's first device, and the pack has only plans, and each user's device compiles their programs.

    A driver names the file as `kernel_packs`. The pack replaces an older pack of this name. Exits with 1, after all
    calls, if a call or a program failed, or if there is no plan; an older pack then stays. Exits with 2, before the
    first call, if no call matches.
    """
    import_torch()
    from torch_outboard.kernels.disk import key, packs, store

    names = tuple(dict.fromkeys(filter(None, arch.split(","))))
    chosen = _calls(only, dtypes, lists)
    try:
        packs.check_target(file)
    except FileExistsError as error:
        raise click.ClickException(str(error)) from error
    if settings := key.settings():
        raise click.ClickException(
            f"users would need the same settings to use the plans, so unset them first: {', '.join(settings)}"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        kept = Path(temporary) if keep is None else _private(keep)
        # Otherwise the user's plans and other packs could pass for new plans.
        set_variables(
            {store.VARIABLE: str(kept), packs.VARIABLE: ""},
            OUTBOARD_PROVIDERS="native,generated",
            OUTBOARD_FALLBACK="silent",
        )
        key.code_hash()  # before the first call, so that later changes of the code are noticed
        if names:
            calls = functools.partial(_found_calls, only, dtypes, lists)
            devices, programs, failures = _without_device(kept, driver, parse_options(options), names, calls)
        else:
            devices, programs, failures = _on_device(driver, options, chosen)
        for label, failure in failures:
            click.echo(printable(f"{label} failed: {failure}"), err=True)
        _write(file, kept, devices, programs)
    if failures:
        raise SystemExit(1)


def _on_device(driver: str, options: tuple[str, ...], calls: Any) -> _PackContent:
    module = attach_for_plans(driver, options)
    from torch_outboard.kernels.disk import key  # imports the device's module
    from torch_outboard.kernels.packing import making

    device = module.current_device()
    failures = list(making.run_calls(device, calls, click.echo))
    return {"": key.kind_with_memory(device)}, (), failures


def _without_device(
    kept: Path, driver: str, options: dict[str, str], names: tuple[str, ...], calls: Any
) -> _PackContent:
    from torch_outboard._discovery import find_driver
    from torch_outboard._errors import RegistrationError
    from torch_outboard.kernels.disk.store import Store
    from torch_outboard.kernels.packing import making
    from torch_outboard.kernels.packing.without_device import check_architectures

    try:
        kind = find_driver(driver)
        check_architectures(kind, names)
        instance = kind(**options)
    except (ImportError, RegistrationError) as error:
        raise click.ClickException(str(error)) from error
    kinds: dict[str, dict[str, str]] = {}
    failures: list[tuple[str, str]] = []
    for group in making.groups_of(instance, names):
        with click.progressbar(length=1, label=f"Calls for {', '.join(group)}", show_pos=True) as bar:
            try:
                new_kinds, failed = making.run_in_processes(driver, options, group, calls, bar)
            except RuntimeError as error:
                raise click.ClickException(str(error)) from error
        kinds |= new_kinds
        failures += failed
    kinds = {name: kinds[name] for name in names}
    programs = making.Programs(kept / "packed", making.programs_of(instance, Store(kept).entries(), kinds))
    with click.progressbar(length=len(programs.wanted), label="Programs", show_pos=True) as bar:
        failures += programs.compile(driver, options, bar)
    return kinds, programs, failures


def _write(file: Path, kept: Path, devices: Any, programs: Any) -> None:
    from torch_outboard import _C
    from torch_outboard._private_files import reason_of
    from torch_outboard.kernels.packing import making

    try:
        plan_count, program_count = making.write_pack(kept, file, devices, programs)
    except making.EmptyPack as error:
        raise click.ClickException(printable(f"cannot write {file}, because {error}")) from error
    size = file.stat().st_size / 2**20
    click.echo(printable(f"{plan_count} plans and {program_count} programs in {file}, {size:.1f} MiB"))
    try:
        _C.check_private(file.absolute(), -1)
    except OSError as error:
        click.echo(printable(f"Processes will not load it from this folder: {reason_of(error)}"), err=True)


def _private(folder: Path) -> Path:
    from torch_outboard._private_files import absolute_path, make_private_folders, reason_of

    path = absolute_path(str(folder))
    try:
        make_private_folders(path)
    except OSError as error:
        raise click.ClickException(reason_of(error)) from error
    return path


def _calls(only: str, dtypes: str, lists: tuple[Path, ...]) -> Any:
    check_pattern(only)
    try:
        calls = _found_calls(only, dtypes, lists)
    except ValueError as error:
        raise click.BadParameter(printable(str(error)), param_hint="--calls") from error
    if calls:
        return calls
    of = f" of {dtypes}" if dtypes else ""
    raise click.BadParameter(
        f"{only!r} matches no call{of}, so the pack would be empty. A name looks like 'add float32'; "
        "torch_outboard/kernels/disk/calls.py lists them",
        param_hint="--only",
    )


def _found_calls(only: str, dtypes: str, lists: tuple[Path, ...]) -> Any:
    """Return the chosen calls; also called in the processes that run them."""
    from torch_outboard.kernels.disk.calls import chosen_calls
    from torch_outboard.kernels.disk.recorded import read_calls

    return chosen_calls(only, _dtypes(dtypes)) + [call for path in lists for call in read_calls(path, only)]


def _dtypes(text: str) -> Any:
    from torch_outboard.kernels.disk.calls import DTYPES

    known = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    names = text.split(",") if text else list(known)
    check_names(names, known, "--dtypes")
    return [known[name] for name in names]
