# SPDX-License-Identifier: BSD-3-Clause
"""`outboard compile-report`: runs a script and reports what torch.compile compiled."""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torch_outboard.cli.script import run_script
from torch_outboard.cli.torch_first import import_torch

if TYPE_CHECKING:
    from torch_outboard.compile.reporting.report import CompileReport  # imports torch

__all__ = ["compile_report", "page"]

_TEMPLATE = Path(__file__).with_name("compile_report.html")


@click.command("compile-report", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--html", "output", metavar="FILE", type=click.Path(dir_okay=False), help="Write the report as a page instead."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def compile_report(output: str | None, as_json: bool, script: str, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT with its ARGUMENTS and report what torch.compile compiled.

    For each region, the report lists graph breaks with reasons and places, and kernels with the operators that they
    fuse. It also lists operators without a kernel, with their provider, and times. The script runs as python would run
    it. If the script fails, the report covers everything compiled before the failure. Exits with the script's status.
    """
    import_torch()
    from torch_outboard.compile.reporting.report import report

    with report() as result:
        status = run_script(script, arguments)
    if output is not None:
        try:
            Path(output).write_text(page(Path(script).name, result), encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{output}: {error.strerror}") from error
        click.echo(f"wrote {output}", file=sys.stderr)
    elif as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        from rich.console import Console

        Console().print(result)
    sys.exit(status)


def page(title: str, result: CompileReport, ran: dict[str, Any] | None = None) -> str:
    """Return the report as one self-contained HTML page, with the places where operators ran, if they are passed."""
    # "</script>" in a name must not end the script.
    data = json.dumps(result.to_dict() | ({} if ran is None else {"ran": ran})).replace("<", "\\u003c")
    return _TEMPLATE.read_text(encoding="utf-8").replace("{{title}}", html.escape(title)).replace("{{data}}", data)
