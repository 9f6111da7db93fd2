# SPDX-License-Identifier: BSD-3-Clause
"""Measure the first call of an operator by generated kernels, in fresh processes, from the call to the kernel's end:

- with nothing stored, so that the process imports Inductor and builds the plan;
- with plans on disk, and programs in the cache of the runtime or the driver;
- with a pack, and no program compiled before: a pack of plans alone, or one that is named, with its programs.

The plans on disk and in the pack come from calls of other sizes. Each figure is the median over the processes. Before
the measured call, a process opens its device, copies its arguments to the device and calls one operator, `neg`, which
has its own row.

    benchmarks/first_call.py --driver nv
    benchmarks/first_call.py --driver nv --pack build/pack-nv/kernels.pack
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _results import RESULTS, write

PROGRAM = """
import json, os, sys, time
os.environ.setdefault("OUTBOARD_PROVIDERS", "native,generated")
os.environ.setdefault("OUTBOARD_FALLBACK", "error")
import torch, torch_outboard
import torch.nn.functional as F
from torch_outboard.kernels import plan_statistics

driver, options, rows, what, pack = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
module = torch_outboard.attach(driver, **options)
if module.device_count() == 0:
    sys.exit(3)
device = torch.device(torch._C._get_privateuse1_backend_name())
x, row, square = torch.randn(rows, 2 * rows + 6), torch.randn(2 * rows + 6), torch.randn(2 * rows + 6, rows + 3)
images, filters = torch.randn(4, 6, rows, rows + 7), torch.randn(10, 6, 3, 3)
indices, table = torch.randint(0, rows, (rows + 1,)), torch.randn(rows + 9, 24)
normed, weight = torch.randn(rows, 96), torch.randn(96)  # its width is a number that is written into the plan
x, row, square, images, filters, indices, table, normed, weight = (
    tensor.to(device) for tensor in (x, row, square, images, filters, indices, table, normed, weight)
)
module.synchronize()
figures = {}
def call(name, text):
    begin = time.perf_counter()
    eval(text)
    module.synchronize()
    figures[name] = (time.perf_counter() - begin) * 1e3
call("neg", "x.neg()")
if what == "all":
    for name, text in json.loads(sys.argv[6]).items():
        call(name, text)
else:
    call(what, json.loads(sys.argv[6])[what])
if pack:
    from pathlib import Path
    from torch_outboard.kernels.disk import key, store
    from torch_outboard.kernels.packing import making
    making.write_pack(store.default_folder(), Path(pack), {"": key.kind_of(0)})
print(json.dumps({"figures": figures, "inductor": "torch._inductor" in sys.modules, **plan_statistics()}))
"""

CASES = {
    "add of a row": "x + row",
    "mul by a number": "x * 0.5",
    "gelu": "F.gelu(x)",
    "cast to bfloat16": "x.to(torch.bfloat16)",
    "copy of the transposed": "x.t().contiguous()",
    "sum of rows": "x.sum(1)",
    "softmax": "x.softmax(1)",
    "layer_norm": "F.layer_norm(normed, weight.shape, weight, weight)",
    "mm": "x @ square",
    "conv2d": "F.conv2d(images, filters, padding=1)",
    "embedding": "F.embedding(indices, table)",
    "cat": "torch.cat([x, x], 1)",
}
# Milliseconds. A pack of plans alone leaves the programs to the driver's compiler.
BARS = {"disk": 10.0, "pack": 150.0}
BAR_WITH_PROGRAMS = 5.0


class Folders:
    """The folders of the processes' plans, pack and programs."""

    def __init__(self, root: Path, pack: Path | None) -> None:
        self.root = root
        self.own_pack = "" if pack else str(root / "pack")  # which the first process writes
        self.pack = pack.resolve() if pack else root / "pack"

    def environment(self, plans: str, programs: str, pack: Path | None) -> dict[str, str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR_")}
        # As installed, with the bytecode that the first process leaves.
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        folder = self.root / programs
        for cache in ("cache", "pocl", "cuda", "inductor"):
            (folder / cache).mkdir(parents=True, exist_ok=True)
        return {
            **variables,
            "OUTBOARD_KERNEL_CACHE_DIR": str(self.root / plans),
            "OUTBOARD_KERNEL_PACKS": "" if pack is None else str(pack),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "POCL_CACHE_DIR": str(folder / "pocl"),
            "CUDA_CACHE_PATH": str(folder / "cuda"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }


def run(environment: dict[str, str], driver: str, options: str, rows: int, case: str, pack: str = "") -> dict:
    command = [sys.executable, "-c", PROGRAM, driver, options, str(rows), case, pack, json.dumps(CASES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == 3:
        sys.exit(f"there is no device of the driver {driver!r} here")
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(driver: str, options: str, rounds: int, cases: list[str], pack: Path | None) -> dict[str, dict[str, float]]:
    """Return the milliseconds of each case, without plans, with plans on disk and with a pack."""
    samples: dict[str, dict[str, list[float]]] = {
        name: {way: [] for way in ("nothing", "disk", "pack")} for name in ("neg", *cases)
    }
    with tempfile.TemporaryDirectory() as root:
        folders = Folders(Path(root), pack)
        kept = folders.environment("plans", "programs", None)
        run(kept, driver, options, 33, "all", folders.own_pack)
        run(kept, driver, options, 57, "all")  # runtimes compile for sizes of launches too
        for number in range(rounds):
            for name in cases:
                fresh = f"{number}-{name}"
                ways = {
                    "nothing": folders.environment(f"{fresh}-plans", f"{fresh}-nothing", None),
                    "disk": kept,
                    "pack": folders.environment(f"{fresh}-none", f"{fresh}-pack", folders.pack),
                }
                for way, environment in ways.items():
                    facts = run(environment, driver, options, 57, name)
                    if facts["inductor"] != (way == "nothing"):
                        sys.exit(f"{name}, {way}: Inductor was {'' if facts['inductor'] else 'not '}imported: {facts}")
                    for figure, value in facts["figures"].items():
                        samples[figure][way].append(value)
    return {name: {way: statistics.median(values) for way, values in ways.items()} for name, ways in samples.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="opencl")
    parser.add_argument("--option", "-o", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=RESULTS / "first_call.json")
    parser.add_argument("--only", action="append", choices=list(CASES), help="of these operators; may be repeated")
    parser.add_argument("--pack", type=Path, help="a pack with the programs of this device")
    options = parser.parse_args()
    bars = BARS | ({"pack": BAR_WITH_PROGRAMS} if options.pack else {})
    driver_options = json.dumps(dict(option.split("=", 1) for option in options.option))
    figures = measure(options.driver, driver_options, options.rounds, options.only or list(CASES), options.pack)
    print("| first call | nothing, ms | plans on disk, ms | to reach | a pack, ms | to reach | reached |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for name, ways in figures.items():
        reached = all(ways[way] <= bar for way, bar in bars.items())
        disk, pack = (f"{ways[way]:.1f} | ≤ {bar:.0f}" for way, bar in bars.items())
        print(f"| {name} | {ways['nothing']:.0f} | {disk} | {pack} | {'yes' if reached else 'no'} |")
    write(options.json, {"driver": options.driver, "milliseconds": figures, "bars": bars})
    return 0


if __name__ == "__main__":
    sys.exit(main())
