# SPDX-License-Identifier: BSD-3-Clause
"""Measure the OpenCL driver against memcpy and a bare loop over the OpenCL API.

Compiles and runs tests/native/bench_opencl.cpp, in which both sides alternate. The comparison with memcpy is valid only
on a device that is a CPU.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from _results import RESULTS, about, write

import torch_outboard

ROOT = Path(__file__).resolve().parent.parent
LINE = re.compile(r"(?P<case>.+?) +(?P<ours>[\d.]+) us +(?P<bare>[\d.]+) us +ratio (?P<ratio>[\d.]+)")
BAR = 1.2


def measure(library: Path) -> list[dict[str, float | str]]:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "bench_opencl"
        sources = [ROOT / "tests/native/bench_opencl.cpp", ROOT / "drivers/opencl/cl.cpp"]
        flags = ["-std=c++20", "-O2", "-pthread", f"-I{ROOT / 'include'}"]
        subprocess.run(["g++", *flags, *map(str, sources), "-o", str(program), "-ldl"], check=True)
        done = subprocess.run([str(program), str(library)], stdout=subprocess.PIPE, text=True, check=True)
    matches = [LINE.match(line) for line in done.stdout.splitlines()]
    return [
        {"case": match["case"], **{key: float(match[key]) for key in ("ours", "bare", "ratio")}}
        for match in matches
        if match is not None
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS / "opencl.json")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    options = parser.parse_args()
    module = torch_outboard.attach("opencl")
    if module.device_count() == 0:
        print("There is no OpenCL device here. scripts/test-tools build/tools installs one or says how.")
        return 0
    properties = module.get_device_properties(0)
    rows = measure(Path(torch_outboard.attached_driver().library))
    print(f"{properties.name}, {properties.driver_version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| case | driver, µs | bare, µs | ratio | to reach | reached |\n|---|---:|---:|---:|---|---|")
    for row in rows:
        reached = "yes" if row["ratio"] <= BAR else "no"
        print(f"| {row['case']} | {row['ours']} | {row['bare']} | {row['ratio']} | ≤ {BAR} × | {reached} |")
    write(options.json, {"about": about(properties), "microseconds": rows})
    return 1 if options.check and any(row["ratio"] > BAR for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
