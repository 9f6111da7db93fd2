# SPDX-License-Identifier: BSD-3-Clause
"""Where benchmarks leave their figures, and what is said of the machine beside them."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def about(properties: Any) -> dict[str, object]:
    """Says when, on which device and beside what figures were taken."""
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
