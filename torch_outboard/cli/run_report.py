# SPDX-License-Identifier: BSD-3-Clause
"""The report at the end of `outboard run`: where the script's operators ran, slowest first, and what was built."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from torch_outboard.cli.output import json_to, printable

if TYPE_CHECKING:
    from torch_outboard.compile.reporting.report import CompileReport  # imports torch

__all__ = ["RunMonitor", "with_reports"]

_MAX_OPERATORS = 8  # shown per provider
# Providers, slowest first: copies through the host, the host's kernels, the device's kernels.
_WORST_FIRST = ("fallback", "staged", "host", "generated", "native")
_WHERE = {
    "fallback": "on copies on the CPU, which is slow",
    "staged": "collectives through copies",
    "host": "by the CPU's kernels in the device's memory",
    "generated": "by generated kernels",
    "native": "by the driver's own kernels",
}


def with_reports(command: Any) -> Any:
    """Add the options of the report to `outboard run`. --fail-each also uses --json."""
    no_use = click.option("--no-use", is_flag=True, help="Let libraries choose their device by themselves.")
    page = click.option(
        "--html",
        "html_file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Write the report as a page.",
    )
    return page(no_use(command))


class RunMonitor:
    """Watches a script in a `with` block. Afterwards, `print_report` prints the report and writes the files.

    The report of torch.compile slows compilation down, so it is made only for the files.
    """

    def __init__(self, title: str, html_file: Path | None, json_file: Path | None) -> None:
        for file in (html_file, json_file):
            if file is not None and not file.absolute().parent.is_dir():
                raise click.UsageError(f"there is no folder {str(file.absolute().parent)!r} for the report")
        self._title, self._html, self._json = title, html_file, json_file
        self._compiled: CompileReport | None = None
        self._stack = contextlib.ExitStack()
        self._seconds = 0.0

    def __enter__(self) -> RunMonitor:
        if self._html is not None or self._json is not None:
            from torch_outboard.compile.reporting.report import report

            self._compiled = self._stack.enter_context(report())
        self._seconds = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds = time.perf_counter() - self._seconds
        self._stack.close()

    def print_report(self) -> None:
        """Print the report to standard error, and write the requested files."""
        report = _report(self._seconds)
        click.echo(_text(report), err=True)
        if self._compiled is None:
            return
        if self._json is not None:
            json_to(self._json, {**report, "compiled": self._compiled.to_dict()})
        if self._html is not None:
            from torch_outboard.cli.compile_report import page

            try:
                self._html.write_text(page(self._title, self._compiled, report), encoding="utf-8")
            except OSError as error:
                raise click.ClickException(f"{self._html}: {error.strerror}") from error


def _report(seconds: float) -> dict[str, Any]:
    """Return where operators ran, slowest first, and what was built, with times."""
    from torch_outboard._coverage import coverage
    from torch_outboard.kernels import build_seconds, plan_statistics

    rows = coverage()
    order = {provider: place for place, provider in enumerate(_WORST_FIRST)}
    ranked = sorted(rows, key=lambda row: (order.get(row.provider, len(order)), -row.calls, row.op))
    return {
        "seconds": seconds,
        "operators": [{**row._asdict(), "reasons": list(rows.reasons.get(row.op, ()))} for row in ranked],
        "plans": {**plan_statistics(), "seconds": build_seconds()},
        "compile_seconds": _compile_seconds(),
    }


def _compile_seconds() -> float:
    """Return the seconds that torch.compile spent compiling, without importing it."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0.0
    from torch._dynamo.utils import calculate_time_spent

    return float(calculate_time_spent().get("total_wall_time", 0.0))


def _text(report: dict[str, Any]) -> str:
    """Return a line for each provider with its operators, slowest first, and a line for each kind of build."""
    lines = []
    for provider in _WORST_FIRST:
        rows = [row for row in report["operators"] if row["provider"] == provider]
        if rows:
            shown = ", ".join(f"{row['op']} {row['calls']}" for row in rows[:_MAX_OPERATORS])
            more = f", and {len(rows) - _MAX_OPERATORS} more" if len(rows) > _MAX_OPERATORS else ""
            lines.append(f"{sum(row['calls'] for row in rows)} calls {_WHERE[provider]}: {shown}{more}.")
    plans = report["plans"]
    if plans["plans"] or plans["loaded"]:
        read = plans["loaded"] + plans["packed"]
        lines.append(f"{plans['plans']} plans of kernels, {read} of them loaded, in {plans['seconds']:.1f} s.")
    if report["compile_seconds"]:
        lines.append(f"torch.compile took {report['compile_seconds']:.1f} s; `outboard compile-report` shows details.")
    total = f"{report['seconds']:.1f} s in total."
    return "\n".join(printable(line) for line in [*(lines or ["No operator ran on the device."]), total])
