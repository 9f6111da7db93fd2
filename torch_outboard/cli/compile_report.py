# SPDX-License-Identifier: BSD-3-Clause
"""`outboard compile-report`: runs a script and reports what torch.compile compiled."""

from __future__ import annotations

import html
import json
import runpy
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torch_outboard.cli.torch_first import import_torch

if TYPE_CHECKING:
    from torch_outboard.compile.reporting.report import CompileReport  # imports torch

__all__ = ["compile_report", "page"]

_TEMPLATE = Path(__file__).with_name("compile_report.html")


@click.command("compile-report", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--html", "output", metavar="FILE", type=click.Path(dir_okay=False), help="Write a page instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def compile_report(output: str | None, as_json: bool, script: str, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT with its ARGUMENTS and report what torch.compile compiled.

    For each region, the report lists graph breaks with reasons and places, and kernels with what they fuse. It also
    lists operators without a kernel, with their provider, and seconds. The script runs as python would run it. If the
    script fails, the report covers what was compiled until then. Exits with the script's status.
    """
    import_torch()
    from torch_outboard.compile.reporting.report import report

    with report() as result:
        status = _run(script, arguments)
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


def page(title: str, result: CompileReport) -> str:
    """Return the report as one self-contained HTML page."""
    # "</script>" in a name must not end the script.
    data = json.dumps(result.to_dict()).replace("<", "\\u003c")
    return _TEMPLATE.read_text(encoding="utf-8").replace("{{title}}", html.escape(title)).replace("{{data}}", data)


def _run(script: str, arguments: tuple[str, ...]) -> int:
    """Run a script as `python SCRIPT ARGUMENTS` does, and return its status."""
    argv, path = sys.argv, sys.path
    sys.argv = [script, *arguments]
    sys.path = [str(Path(script).resolve().parent), *sys.path]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return _status(end.code)
    except KeyboardInterrupt as error:
        _print(error, script)
        return 130
    except BaseException as error:  # noqa: BLE001 - printed as Python does
        _print(error, script)
        return 1
    finally:
        sys.argv, sys.path = argv, path
    return 0


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


def _print(error: BaseException, script: str) -> None:
    """Print the traceback without this command's frames, through the script's own hook if it has one."""
    frames: types.TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    # Without a frame of the script, python could not read the script; it shows no stack then.
    sys.excepthook(type(error), error.with_traceback(frames), frames)
