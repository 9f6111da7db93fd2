# SPDX-License-Identifier: BSD-3-Clause
"""Output of the commands: tables, progress and reports, on terminals of 80 columns."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

__all__ = ["check_names", "check_pattern", "json_to", "print_plan", "printable", "progress", "table"]


def printable(text: str) -> str:
    """Return a line without control characters. Bytes of a path that are not text become \\xNN."""
    return "".join(char if char.isprintable() or char == "\t" else f"\\x{_code_of(char):02x}" for char in text)


def _code_of(character: str) -> int:
    """Return a character's number, or the byte that Python has replaced by the character."""
    code = ord(character)
    return code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table.

    The first column takes the remaining width and wraps; the others never wrap. Numbers are aligned right.
    """
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    is_number = [bool(rows) and all(isinstance(row[place], int) for row in rows) for place in range(len(heads))]
    first, *rest = (
        Column(head, no_wrap=place > 0, overflow="fold", justify="right" if number else "left")
        for place, (head, number) in enumerate(zip(heads, is_number, strict=True))
    )
    grid = Table(first, *rest, title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for row in rows:
        grid.add_row(*(escape(printable(str(cell))) for cell in row))
    Console().print(grid)


@contextlib.contextmanager
def progress(
    title: str, count: int | None = None, is_slow: bool = False, shows_left: bool = False
) -> Iterator[Callable[..., None]]:
    """Show a progress bar on a terminal while the block runs.

    Yields a function that takes a step's name and advances the bar by one step, or by `advance`. If steps take minutes
    (`is_slow`), and the output is not a terminal, it writes a line to standard error. `shows_left` adds the time left.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    left = (TextColumn("left"), TimeRemainingColumn()) if shows_left else ()
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), *left)
    with Progress(
        *columns, TextColumn("{task.fields[step]}"), console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task(title, total=count, step="")

        def step(name: str, advance: int = 1) -> None:
            shown.update(task, advance=advance, step=escape(printable(name)[:60]))
            if is_slow and not console.is_terminal:
                click.echo(printable(f"{title}, {shown.tasks[task].completed:.0f} of {count}: {name}"), err=True)

        yield step


def check_names(names: Iterable[str], known: Collection[str], option: str, also: Sequence[str] = ()) -> None:
    """Raise click.BadParameter for the first unknown name; the message lists the known names and `also`."""
    for name in names:
        if name not in known:
            raise click.BadParameter(
                f"unknown name {name!r}; choose from {', '.join((*also, *known))}", param_hint=option
            )


def check_pattern(only: str) -> None:
    """Raise click.BadParameter if the value of --only is not a regular expression."""
    try:
        re.compile(only)
    except re.error as error:
        raise click.BadParameter(f"{only!r} is not a regular expression: {error}", param_hint="--only") from error


def json_to(path: Path, report: Any) -> None:
    """Write a report as JSON.

    Raises click.ClickException if the file cannot be written.
    """
    try:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"the report can't be written: {error}") from error


def print_plan(text: str, kernels: Sequence[Any]) -> None:
    """Print a plan and the texts of its kernels, which are KernelRecords."""
    click.echo(_indented(text))
    for kernel in kernels:
        click.echo(printable(f"  {kernel.name}, in {kernel.language}:"))
        click.echo(_indented(kernel.code.decode()) if _is_text(kernel.code) else f"    {len(kernel.code)} bytes")


def _is_text(code: bytes) -> bool:
    try:
        code.decode()
    except UnicodeDecodeError:
        return False
    return True


def _indented(text: str) -> str:
    return "\n".join("    " + printable(line) for line in text.rstrip().split("\n"))
