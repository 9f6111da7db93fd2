# SPDX-License-Identifier: BSD-3-Clause
"""How commands show what they do and find, on terminals of 80 columns."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

__all__ = ["check_names", "check_pattern", "json_to", "printable", "progress", "table"]


def printable(text: str) -> str:
    """Return a line without what a terminal would obey. Bytes of a path that are no text become \\xNN."""
    return "".join(one if one.isprintable() or one == "\t" else f"\\x{_code_of(one):02x}" for one in text)


def _code_of(character: str) -> int:
    """Return a character's number, or the byte that Python has put one in the place of."""
    code = ord(character)
    return code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table. The first column takes what is left and wraps, the others never do; numbers stand right."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    is_number = [bool(rows) and all(isinstance(row[place], int) for row in rows) for place in range(len(heads))]
    first, *rest = (
        Column(head, no_wrap=place > 0, overflow="fold", justify="right" if number else "left")
        for place, (head, number) in enumerate(zip(heads, is_number, strict=True))
    )
    made = Table(first, *rest, title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for row in rows:
        made.add_row(*(escape(printable(str(one))) for one in row))
    Console().print(made)


@contextlib.contextmanager
def progress(what: str, count: int | None = None) -> Iterator[Callable[[str], None]]:
    """Shows a bar while its block runs, on a terminal, beside what is printed. It gives what tells a step's name."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TextColumn("{task.fields[step]}"), console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task(what, total=count, step="")
        yield lambda name: shown.update(task, advance=1, step=escape(printable(name)[:30]))


def check_names(given: Iterable[str], known: Collection[str], option: str, also: Sequence[str] = ()) -> None:
    """Raises click.BadParameter for the first that isn't known; `also` are words that may stand in their place."""
    for name in given:
        if name not in known:
            raise click.BadParameter(f"there is no {name!r}, only {', '.join((*also, *known))}", param_hint=option)


def check_pattern(only: str) -> None:
    """Raises click.BadParameter for an option --only that is no regular expression."""
    try:
        re.compile(only)
    except re.error as error:
        raise click.BadParameter(f"{only!r} is no regular expression: {error}", param_hint="--only") from error


def json_to(path: Path, report: Any) -> None:
    """Writes a report. click.ClickException if the file can't be written."""
    try:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"the report can't be written: {error}") from error
