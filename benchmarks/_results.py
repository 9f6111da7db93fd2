# SPDX-License-Identifier: BSD-3-Clause
"""Storage of the benchmarks' figures, with a description of the machine."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


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


def write(path: Path, figures: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")
