# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels`: the plans of generated kernels that are kept on disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from torch_outboard.kernels.store import Entry  # imports torch, for which `outboard --help` doesn't wait

__all__ = ["kernels"]


@click.group()
def kernels() -> None:
    """Show or remove the generated kernels that are kept on disk."""


def _folder() -> Path:
    from torch_outboard.kernels.store import VARIABLE, default_folder

    folder = default_folder()
    if folder is None:
        raise click.ClickException(f"plans are kept nowhere: {VARIABLE} is empty, or there is no home folder")
    return folder


@kernels.command("list")
@click.argument("operator", default="")
@click.option("--source", is_flag=True, help="Print the plans, and the kernels' texts.")
def show(operator: str, source: bool) -> None:
    """List the plans for calls, or those of OPERATORs whose name has this text.

    They are those of the installed PyTorch and of this package's code; plans of others are counted.
    """
    from torch_outboard.kernels.store import Store, versions_in

    folder = _folder()
    store = Store(folder)
    entries = sorted(
        store.entries(), key=lambda entry: (entry.key.get("operator", ""), str(entry.key.get("arguments")))
    )
    chosen = [entry for entry in entries if operator in entry.key.get("operator", "")]
    for entry in chosen:
        click.echo(_line(entry))
        if source:
            _print_source(entry)
    others = len(versions_in(folder)) - (1 if store.is_usable else 0)
    size = sum(entry.size for entry in chosen) / 1024
    more = f"; {others} other versions have left theirs" if others > 0 else ""
    click.echo(f"{len(chosen)} plans, {size:.0f} KiB, in {_printable(str(folder))}{more}")


@kernels.command()
def clear() -> None:
    """Remove the plans of all versions."""
    from torch_outboard.kernels.store import versions_in

    found = versions_in(_folder())
    for version in found:
        shutil.rmtree(version)
    click.echo(f"removed the plans of {len(found)} versions")


def _line(entry: Entry) -> str:
    if entry.answer is None:
        return f"{_printable(str(entry.path))} is damaged"
    _, made, refusal, _ = entry.answer
    arguments = ", ".join(_argument(one) for one in entry.key["arguments"])
    what = f"none, {refusal}" if refusal else f"{len(made)} kernel{'' if len(made) == 1 else 's'}"
    return _printable(f"{entry.key['operator']}({arguments}): {what}")


def _argument(given: Any) -> str:
    """Gives an argument as `key_of` described it in a reader's words."""
    match given:
        case ["tensor", str(dtype), list(sizes), list(), str(device)]:
            return f"{dtype.removeprefix('torch.')}{sizes}{' on the CPU' if device == 'cpu' else ''}"
        case ["read", kind]:
            return f"any {kind}"
        case ["float", str(text)]:
            return repr(float.fromhex(text))
        case ["list", list(values)]:
            return f"[{', '.join(_argument(one) for one in values)}]"
        case [_, value]:
            return str(value)
    return str(given)


def _print_source(entry: Entry) -> None:
    if entry.answer is None:
        return
    plan, made, _, _ = entry.answer
    device: Mapping[str, Any] = entry.key["device"]
    click.echo(_printable(f"  for {device['device'][1]}, by {device['generator']}"))
    click.echo(_indented(plan))
    for name, language, code, *_ in made:
        click.echo(_printable(f"  {name}, in {language}:"))
        click.echo(_indented(code.decode()) if _is_text(code) else f"    {len(code)} bytes")


def _is_text(code: bytes) -> bool:
    try:
        code.decode()
    except UnicodeDecodeError:
        return False
    return True


def _indented(text: str) -> str:
    return "\n".join("    " + _printable(line) for line in text.rstrip().split("\n"))


def _printable(text: str) -> str:
    """Gives a line without what a terminal would obey."""
    return "".join(one if one.isprintable() or one == "\t" else f"\\x{ord(one):02x}" for one in text)
