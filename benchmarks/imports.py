# SPDX-License-Identifier: BSD-3-Clause
"""Measure the start-up costs of `import torch_outboard`, the unused autoload hook and the command `outboard`.

For the import and the hook, a figure is the time added to `import torch`. Each figure is the median over fresh
processes, which alternate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from _results import RESULTS, write

PROGRAMS = {
    "import torch": "import torch",
    "import torch_outboard": "import torch; mark(); import torch_outboard",
    "autoload hook, unset": "import torch; mark(); from torch_outboard_autoload import autoload; autoload()",
    "the command outboard": "import torch_outboard_command, torch_outboard.cli",
}
LIMITS_MS = {"import torch_outboard": 20.0, "autoload hook, unset": 5.0, "the command outboard": 150.0}
PRELUDE = """
import time
start = time.perf_counter()
def mark():
    global start
    start = time.perf_counter()
{program}
print(time.perf_counter() - start)
"""


def milliseconds(program: str) -> float:
    # torch calls the hook while it is imported; here it is called once more, alone,
    # so torch must not call it first.
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    environment.pop("OUTBOARD_DRIVER", None)
    # As installed, with the bytecode that the first turn leaves: compiling the sources
    # takes longer than their import.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", PRELUDE.format(program=program)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return float(done.stdout) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, default=RESULTS / "imports.json")
    options = parser.parse_args()
    samples: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for number in range(-1, options.rounds):
        for name, program in PROGRAMS.items():
            value = milliseconds(program)
            # The first turn fills the file cache and leaves the bytecode.
            if number >= 0:
                samples[name].append(value)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    print("| program | ms | to reach |\n|---|---:|---|")
    for name, value in medians.items():
        print(f"| {name} | {value:.1f} | {f'≤ {LIMITS_MS[name]:.0f} ms' if name in LIMITS_MS else ''} |")
    write(options.json, {"rounds": options.rounds, "milliseconds": medians})
    return 0


if __name__ == "__main__":
    sys.exit(main())
