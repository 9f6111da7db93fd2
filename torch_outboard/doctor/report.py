# SPDX-License-Identifier: BSD-3-Clause
"""A driver's report for its developers, in a separate process, because opening a vendor's libraries may crash it.

python -m torch_outboard.doctor.report DRIVER OPTIONS prints the report as JSON in the last line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch_outboard._child import ask_module

__all__ = ["lines_of", "report_of"]


def report_of(name: str, options: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return `Driver.report()` of a driver, or how the process ended, under "error"."""
    answer = ask_module(__name__, name, json.dumps(dict(options)))
    if answer.failure:
        return {"error": f"the report's process {answer.failure}", "output": answer.output}
    report: Mapping[str, Any] | None = answer.value
    return report


def lines_of(report: Any, indent: int = 0) -> Iterator[str]:
    """Yield a report as lines of text: names and values, indented."""
    pairs = report.items() if isinstance(report, Mapping) else [("-", item) for item in report]
    for name, value in pairs:
        head = f"{'  ' * indent}{name}{'' if name == '-' else ':'}"
        if isinstance(value, list) and not any(isinstance(item, Mapping | list) for item in value) and len(value) < 6:
            yield f"{head} {', '.join(map(str, value))}".rstrip()
        elif isinstance(value, Mapping | list):
            yield head
            yield from lines_of(value, indent + 1)
        else:
            yield f"{head} {value}"


def _main(name: str, options: dict[str, object]) -> None:
    import torch  # noqa: F401 - Driver.report may expect torch to be imported

    from torch_outboard._discovery import find_driver

    print(json.dumps(find_driver(name)(**options).report()))


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
