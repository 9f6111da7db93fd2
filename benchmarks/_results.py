# SPDX-License-Identifier: BSD-3-Clause
"""Storage of the benchmarks' figures, with a description of the machine."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
# Characters of a row. What is longer has a line for each of its parts, except a list of numbers.
ROW = 400


def results_of(driver: str) -> Path:
    """Return the folder of figures about one driver: its distribution's if it has one, else that of all."""
    own = RESULTS.parents[1] / "distributions" / driver
    return own / "results" if own.is_dir() else RESULTS


def about(properties: Any) -> dict[str, object]:
    """Return the date, the device, the versions and the load under which figures were taken."""
    import torch  # not for the benchmark of imports

    return {
        "date": datetime.date.today().isoformat(),
        "device": properties.name,
        "driver_version": properties.driver_version,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def _lines(value: object, indent: str = "") -> str:
    text = json.dumps(value, ensure_ascii=False)
    is_row = isinstance(value, list | tuple) and not any(isinstance(item, dict | list | tuple) for item in value)
    if not isinstance(value, dict | list | tuple) or is_row or len(text) <= ROW:
        return text
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(key), ensure_ascii=False)}: {_lines(item, inner)}" for key, item in value.items()]
    else:
        parts = [_lines(item, inner) for item in value]
    lines = ",\n".join(inner + part for part in parts)
    return f"{text[0]}\n{lines}\n{indent}{text[-1]}"


def write(path: Path, figures: object) -> None:
    """Write figures as JSON with one row a line, so that a new measurement changes the lines of its rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_lines(figures) + "\n", encoding="utf-8")
