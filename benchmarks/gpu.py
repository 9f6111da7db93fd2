# SPDX-License-Identifier: BSD-3-Clause
"""Measures the drivers of a real GPU: the CUDA driver beside torch's own CUDA device, in one process; OpenCL after it.

Host calls are medians over rounds that take turns; copies and fills are timed over a batch and one wait.
benchmarks/gpu.sh runs it where there is a GPU; elsewhere it says so and stops.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
OURS, THEIRS = "nv", "cuda"
MEGABYTES = 256
BYTES = MEGABYTES << 20
ROUNDS = 15


@dataclass(frozen=True)
class Case:
    """A statement over `Values`, its number of repetitions, and the largest ratio to torch's own device."""

    name: str
    statement: str
    loops: int
    bar: float | None
    is_bulk: bool = False  # on the device, waited for at the end of a batch; moves BYTES
    moved: int = BYTES


CASES = [
    Case("empty", "empty(16, device=device)", 5000, 1.03),
    Case("allocate and free, changing sizes", "churn()", 200, 1.03),
    Case("set_stream", "set_stream(side)", 5000, 1.03),
    Case("event record", "event.record(stream)", 5000, 1.03),
    Case("event query", "event.query()", 5000, 1.03),
    Case("stream wait for event", "stream.wait_event(event)", 5000, 1.03),
    Case("raw stream", "raw_stream(0)", 10000, 1.03),
    Case("synchronise, idle", "synchronize()", 2000, 1.03),
    Case("host to device, pinned, 256 MB", "device_block.copy_(pinned, non_blocking=True)", 4, 1.03, True),
    Case("device to host, pinned, 256 MB", "pinned.copy_(device_block, non_blocking=True)", 4, 1.03, True),
    Case("device to device, 256 MB", "device_block.copy_(other_block)", 20, 1.01, True, 2 * BYTES),
    Case("fill_, 256 MB", "device_block.fill_(1.5)", 20, 1.05, True),
    Case("fill_ of float64, 256 MB", "doubles.fill_(1.1)", 20, 1.05, True),
    Case("zero_, 256 MB", "device_block.zero_()", 20, 1.05, True),
    Case("strided copy, transposed, 256 MB", "square.copy_(other_square.t())", 20, 1.2, True, 2 * BYTES),
    Case("strided copy, permuted, 256 MB", "cube.copy_(other_cube.permute(2, 0, 1))", 20, 1.2, True, 2 * BYTES),
    Case("strided copy, every second, 128 MB", "half.copy_(other_block[::2])", 20, 1.2, True, 3 * BYTES // 2),
    Case("strided copy, rows with gaps, 256 MB", "square.copy_(wide[:, :8192])", 20, 1.2, True, 2 * BYTES),
    Case("graph replay of 100 copies", "graph.replay()", 50, 1.05, True, 0),
]

# Copies of the OpenCL driver against the CUDA driver's.
OPENCL_BAR = 1.2


def churn_on(torch: Any, device: Any) -> Callable[[], None]:
    """Gives eight allocations, each in the place of an older one of another size."""
    sizes = [1 << 10, 3 << 20, 5 << 12, 1 << 20, 9 << 18, 700, 1 << 16, 30 << 20]
    kept: list[Any] = [None] * 8
    place = 0

    def churn() -> None:
        nonlocal place
        for size in sizes:
            place = (place + 3) % 8
            kept[place] = torch.empty(size, dtype=torch.uint8, device=device)

    return churn


def graph_on(module: Any, torch: Any, device: Any) -> Any:
    """Captures 100 copies of 1 MB; None where the device has no graphs."""
    blocks = [torch.zeros(1 << 18, device=device) for _ in range(2)]
    make = getattr(module, "CUDAGraph", None) or getattr(module, "Graph", None)
    if make is None:
        return None
    try:
        graph = make()
        with module.graph(graph):
            for number in range(100):
                blocks[number % 2].copy_(blocks[(number + 1) % 2])
    except NotImplementedError:
        return None
    return graph


def values_on(torch: Any, name: str) -> dict[str, Any]:
    """Gives the names that the statements use, on one device."""
    from torch_outboard import _C

    module = torch.get_device_module(name)
    device = torch.device(name, 0)
    stream, event = module.current_stream(0), torch.Event(device)
    event.record(stream)
    count = BYTES // 4
    values = {
        "empty": torch.empty,
        "device": device,
        "churn": churn_on(torch, device),
        "set_stream": module.set_stream,
        "side": stream,
        "event": event,
        "stream": stream,
        "raw_stream": torch._C._cuda_getCurrentRawStream if name == "cuda" else _C.current_raw_stream,
        "synchronize": module.synchronize,
        # Where CUDA is there, pin_memory=True means its allocator, whatever device is attached.
        "pinned": torch.ones(count).pin_memory() if name != "cuda" else torch.ones(count, pin_memory=True),
        "device_block": torch.zeros(count, device=device),
        "other_block": torch.randn(count).to(device),
        "doubles": torch.zeros(count // 2, dtype=torch.float64, device=device),
        "square": torch.zeros(8192, 8192, device=device),
        "other_square": torch.randn(8192, 8192).to(device),
        "cube": torch.zeros(256, 512, 512, device=device),
        "other_cube": torch.randn(512, 512, 256).to(device),
        "half": torch.zeros(count // 2, device=device),
        "wide": torch.randn(8192, 8192 + 64).to(device),
        "graph": graph_on(module, torch, device),
    }
    module.synchronize()
    return values


def check_results(torch: Any, values: dict[str, Any]) -> None:
    """The fast copies must also be right."""
    exec_all = [
        ("square.copy_(other_square.t())", lambda v: v["other_square"].cpu().t(), "square"),
        ("cube.copy_(other_cube.permute(2, 0, 1))", lambda v: v["other_cube"].cpu().permute(2, 0, 1), "cube"),
        ("half.copy_(other_block[::2])", lambda v: v["other_block"].cpu()[::2], "half"),
        ("square.copy_(wide[:, :8192])", lambda v: v["wide"].cpu()[:, :8192], "square"),
    ]
    for statement, expected, target in exec_all:
        exec(statement, {}, values)
        assert torch.equal(values[target].cpu(), expected(values).contiguous()), statement


def sample(case: Case, timer: timeit.Timer, wait: Callable[[], None]) -> float:
    """Gives seconds per repetition."""
    wait()
    start = time.perf_counter()
    timer.timeit(case.loops)
    if case.is_bulk:
        wait()
    return (time.perf_counter() - start) / case.loops


def measure(case: Case, places: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    if "graph" in case.statement and any(values["graph"] is None for values in places.values()):
        return None
    timers = {place: timeit.Timer(case.statement, globals=values) for place, values in places.items()}
    samples: dict[str, list[float]] = {place: [] for place in places}
    for number in range(-2, ROUNDS):
        # The order turns each round, so that neither side always runs on what the other left behind.
        for place in sorted(timers, reverse=bool(number % 2)):
            seconds = sample(case, timers[place], places[place]["synchronize"])
            if number >= 0:
                samples[place].append(seconds)
    result: dict[str, Any] = {place: statistics.median(values) for place, values in samples.items()}
    if len(places) == 2:
        result["ratio"] = statistics.median(
            ours / theirs for ours, theirs in zip(samples[OURS], samples[THEIRS], strict=True)
        )
    return result


def run_section(driver: str) -> dict[str, Any]:
    """Measures one driver, beside torch's own device if that is its hardware's."""
    import torch

    import torch_outboard

    torch_outboard.attach(driver)
    name = torch_outboard.attached_driver().name
    places = {driver: values_on(torch, name)}
    check_results(torch, places[driver])
    if driver == OURS and torch.cuda.is_available():
        places[THEIRS] = values_on(torch, THEIRS)
    properties = torch.get_device_module(name).get_device_properties(0)
    about = {"name": properties.name, "driver_version": properties.driver_version, "torch": torch.__version__}
    results = {}
    for case in CASES:
        print(case.name, file=sys.stderr, flush=True)
        results[case.name] = measure(case, places)
    return {"about": about, "cases": results}


def text_of(case: Case, seconds: float | None) -> str:
    if seconds is None:
        return ""
    if case.is_bulk and case.moved:
        return f"{case.moved / seconds / 1e9:,.1f} GB/s"
    return f"{seconds * 1e9:,.0f} ns"


def table(sections: dict[str, Any]) -> tuple[list[str], bool]:
    """Gives the table as Markdown, and whether all bars hold."""
    lines = [
        f"| case | {OURS} | torch's {THEIRS} | ratio | at most | holds | opencl | to {OURS} |",
        "|---|---:|---:|---:|---:|---|---:|---:|",
    ]
    all_hold = True
    for case in CASES:
        ours = sections.get(OURS, {}).get("cases", {}).get(case.name) or {}
        opencl = (sections.get("opencl", {}).get("cases", {}).get(case.name) or {}).get("opencl")
        ratio, verdict, to_ours = ours.get("ratio"), "", ""
        if ratio is not None and case.bar is not None:
            verdict = "yes" if ratio <= case.bar else "no"
            all_hold &= ratio <= case.bar
        if opencl is not None and OURS in ours:
            relation = opencl / ours[OURS]
            to_ours = f"{relation:.2f}"
            if "host" in case.name or "device to device" in case.name:
                to_ours += f" (at most {OPENCL_BAR}: {'yes' if relation <= OPENCL_BAR else 'no'})"
                all_hold &= relation <= OPENCL_BAR
        cells = [case.name, text_of(case, ours.get(OURS)), text_of(case, ours.get(THEIRS))]
        cells += [f"{ratio:.3f}" if ratio is not None else "not yet" if not ours else "", str(case.bar or ""), verdict]
        lines.append(f"| {' | '.join([*cells, text_of(case, opencl), to_ours])} |")
    return lines, all_hold


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia").exists() or Path("/dev/nvidia0").exists()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--section", choices=[OURS, "opencl"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.section:
        print(json.dumps(run_section(options.section)))
        return 0
    if not has_gpu():
        print("There is no NVIDIA GPU here. On a machine with one: benchmarks/gpu.sh")
        return 0
    sections: dict[str, Any] = {}
    for section in (OURS, "opencl"):
        done = subprocess.run([sys.executable, __file__, "--section", section], stdout=subprocess.PIPE, text=True)
        if done.returncode == 0:
            sections[section] = json.loads(done.stdout.splitlines()[-1])
        else:
            print(f"{section}: the measurement ended with status {done.returncode}")
    lines, all_hold = table(sections)
    about = sections.get(OURS, {}).get("about", {})
    today = datetime.date.today().isoformat()
    head = f"{about.get('name')}, CUDA {about.get('driver_version')}, torch {about.get('torch')}, {today}"
    text = "\n".join([f"# {head}", "", f"Medians of {ROUNDS} rounds, {os.cpu_count()} CPU cores.", "", *lines, ""])
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.md").write_text(text)
    (options.out / "gpu.json").write_text(json.dumps({"date": today, "sections": sections}, indent=2) + "\n")
    return 0 if len(sections) == 2 and (all_hold or not options.check) else 1


if __name__ == "__main__":
    sys.exit(main())
