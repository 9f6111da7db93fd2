# SPDX-License-Identifier: BSD-3-Clause
"""Measure the first training step of published architectures in fresh processes, against torch's own CUDA device.

    benchmarks/first_steps.py                              # nv against CUDA
    benchmarks/first_steps.py --pack build/pack-nv/kernels.pack --states pack    # leaves the other states' figures
    benchmarks/first_steps.py --driver opencl --only resnet50,gpt2

A model's first step is measured with an empty cache, in a second process with the cache that the first one left, and
with a pack and an empty cache if one is named. The models and their steps are those of models.py. A process imports its
libraries and moves its model to the device before the clock starts. Python keeps its bytecode, as after an
installation. Steps run one after another, so each has the whole machine, except for the processes that import
meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _models import MODELS, named_models
from _results import results_of, write
from _step_process import Step, parser_of, step_process

SCRIPT = str(Path(__file__).with_name("models.py"))
# Processes that get ready while another one measures.
PROCESSES_AHEAD = 4
KEYS = ("against_s", "empty_s", "cached_s", "pack_s")


class FirstSteps:
    """Measures the first steps of one model after another, in processes of their own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._driver = options.driver
        self._against = options.against
        self._is_tiny = options.tiny
        self._states = options.states.split(",")
        self._pack = options.pack
        self._measuring = threading.Lock()
        self.found: dict[str, Any] = {}

    def measure(self, name: str) -> dict[str, Any]:
        """Return the seconds of a model's first steps, and the number of plans that the process built for them."""
        with tempfile.TemporaryDirectory() as folder:
            theirs, _ = self._first(self._against, name, Path(folder, "against"))
            row: dict[str, Any] = {"against_s": theirs}
            if "empty" in self._states:
                row["empty_s"], after = self._first(self._driver, name, Path(folder, "kept"))
                row["cached_s"], _ = self._first(self._driver, name, Path(folder, "kept"))
                row |= {"built": after["plans"]["saved"], "fallback": after["fallback"]}
            if "pack" in self._states:
                row["pack_s"], after = self._first(self._driver, name, Path(folder, "packed"), str(self._pack))
                row["built_with_pack"] = after["plans"]["saved"]
        return row

    def _first(self, driver: str, name: str, folder: Path, pack: str = "") -> tuple[float, Step]:
        environment = {
            "OUTBOARD_KERNEL_CACHE_DIR": str(folder / "kernels"),
            "OUTBOARD_KERNEL_PACKS": pack,
            "CUDA_CACHE_PATH": str(folder / "cuda"),  # NVIDIA's driver keeps programs there
            "PYTHONDONTWRITEBYTECODE": "",
        }
        words = ["--driver", driver, "--serve", name, *(["--tiny"] if self._is_tiny else [])]
        with step_process(SCRIPT, *words, environment=environment) as process:
            if driver == self._driver:
                self.found = process.found
            with self._measuring:
                step = process.step()
        return step["step_ms"] / 1e3, step


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", metavar="MODEL,...", type=named_models)
    parser.add_argument("--pack", type=Path, help="a pack of kernels, for the state pack")
    parser.add_argument("--states", help="empty, which is followed by the cache it leaves, pack, or both")
    options = parser.parse_args()
    options.states = options.states or ("empty,pack" if options.pack else "empty")
    if ("pack" in options.states.split(",")) != (options.pack is not None):
        parser.error("the state pack needs --pack, and --pack is for the state pack")
    path = options.json or results_of(options.driver) / f"first-steps-{options.driver}.json"
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["models"] if path.exists() else {}
    steps = FirstSteps(options)
    names = options.only or list(MODELS)
    print(f"| model | {options.against}, s | empty cache, s | from the cache, s | pack, s | plans not in the pack |")
    print("|---|---:|---:|---:|---:|---:|")
    with ThreadPoolExecutor(PROCESSES_AHEAD) as pool:
        for name, row in zip(names, pool.map(steps.measure, names), strict=True):
            rows[name] = rows.get(name, {}) | row
            seconds = (f"{row[key]:.2f}" if key in row else "" for key in KEYS)
            print(f"| {name} | {' | '.join(seconds)} | {row.get('built_with_pack', '')} |", flush=True)
            write(path, {"about": steps.found, "models": rows})
    for key in KEYS[1:]:
        if values := [rows[name][key] for name in names if key in rows[name]]:
            print(f"{key}: median {statistics.median(values):.2f}, largest {max(values):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
