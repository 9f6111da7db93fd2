# SPDX-License-Identifier: BSD-3-Clause
"""The end of a search over many runs, shared by `outboard race` and `outboard run --fail-each`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from torch_outboard.cli.output import printable

__all__ = ["FAILS", "INTERRUPTED", "check_folders", "printable_lines", "run_search"]

FAILS, INTERRUPTED = 3, 130  # exit statuses


def check_folders(*files: Path | None) -> None:
    """Raise an error, before anything runs, if a report's folder does not exist."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise click.UsageError(f"there is no folder {str(file.absolute().parent)!r} for the report")


def run_search(runner: Any, search: Callable[[], Any]) -> Any:
    """Search, close the runner, and return the findings, or the exit status if the search failed."""
    from torch_outboard.race.search import ProgramFailed, SearchRefused

    try:
        return search()
    except ProgramFailed as error:
        click.echo(printable_lines(str(error)), err=True)
        return FAILS
    except SearchRefused as error:
        raise click.UsageError(printable_lines(str(error))) from error
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    finally:
        runner.close()


def printable_lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.splitlines())
