# SPDX-License-Identifier: BSD-3-Clause
"""Measure the first training step of published architectures in fresh processes, against torch's own CUDA device.

    benchmarks/first_steps.py                              # nv against CUDA
    benchmarks/first_steps.py --pack build/pack-nv/kernels.pack
    benchmarks/first_steps.py --driver opencl --only resnet50,gpt2

A model's first step is measured with an empty cache, in a second process with the cache that the first one left, and
with a pack and an empty cache if one is named. The models and their steps are those of models.py. A process imports its
libraries and moves its model to the device before the clock starts. Steps run one after another, so each has the whole
machine, except for the processes that import meanwhile.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _models import MODELS
from _results import results_of, write
from _served import Step, parser_of, served

SCRIPT = str(Path(__file__).with_name("models.py"))
# Processes that get ready while another one measures.
AHEAD = 4


class FirstSteps:
    """Measures the first steps of one model after another, in processes of their own."""

    def __init__(self, driver: str, against: str, is_tiny: bool, pack: Path | None) -> None:
        self._driver = driver
        self._against = against
        self._is_tiny = is_tiny
        self._pack = pack
        self._measuring = threading.Lock()
        self.found: dict[str, Any] = {}

    def measure(self, name: str) -> dict[str, Any]:
        """Return the seconds of a model's first steps, and what the step with an empty cache built."""
        with tempfile.TemporaryDirectory() as folder:
            theirs, _ = self._first(self._against, name, Path(folder, "against"))
            empty, after = self._first(self._driver, name, Path(folder, "kept"))
            cached, _ = self._first(self._driver, name, Path(folder, "kept"))
            row = {"against_s": theirs, "empty_s": empty, "cached_s": cached}
            if self._pack is not None:
                row["pack_s"], _ = self._first(self._driver, name, Path(folder, "packed"), str(self._pack))
        return {**row, "plans": after["plans"], "fallback": after["fallback"]}

    def _first(self, driver: str, name: str, folder: Path, pack: str = "") -> tuple[float, Step]:
        environment = {
            "OUTBOARD_KERNEL_CACHE_DIR": str(folder / "kernels"),
            "OUTBOARD_KERNEL_PACKS": pack,
            "CUDA_CACHE_PATH": str(folder / "cuda"),  # NVIDIA's driver keeps programs there
        }
        words = ["--driver", driver, "--serve", name, *(["--tiny"] if self._is_tiny else [])]
        with served(SCRIPT, *words, environment=environment) as process:
            if driver == self._driver:
                self.found = process.found
            with self._measuring:
                step = process.step()
        return step["step_ms"] / 1e3, step


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", metavar="MODEL,...")
    parser.add_argument("--pack", type=Path, help="a pack of kernels to measure too")
    options = parser.parse_args()
    path = options.json or results_of(options.driver) / f"first-steps-{options.driver}.json"
    steps = FirstSteps(options.driver, options.against, options.tiny, options.pack)
    names = options.only.split(",") if options.only else list(MODELS)
    rows: dict[str, dict[str, Any]] = {}
    print(
        f"| model | {options.against}, s | empty cache, s | from the cache, s | pack, s | cache ÷ {options.against} |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    with ThreadPoolExecutor(AHEAD) as pool:
        for name, row in zip(names, pool.map(steps.measure, names), strict=True):
            rows[name] = row
            packed = f"{row['pack_s']:.2f}" if options.pack else ""
            seconds = f"{row['against_s']:.2f} | {row['empty_s']:.2f} | {row['cached_s']:.2f} | {packed}"
            print(f"| {name} | {seconds} | {row['cached_s'] / row['against_s']:.2f} |", flush=True)
            write(path, {"about": steps.found, "models": rows})
    for key in ("empty_s", "cached_s", *(["pack_s"] if options.pack else [])):
        values = [row[key] for row in rows.values()]
        print(f"{key}: median {statistics.median(values):.2f}, largest {max(values):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
