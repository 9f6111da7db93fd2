# SPDX-License-Identifier: BSD-3-Clause
"""Measure the drivers of a real GPU: the CUDA driver beside torch's own CUDA device, in one process; OpenCL after it.

Host calls are medians over alternating rounds. Copies and fills are timed over a batch and one wait, and their results
are compared with the CPU's. A case that fails becomes a line of the table; the other cases run on. benchmarks/gpu.sh
runs this script if there is a GPU; otherwise it says so and stops.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
import timeit
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _results import RESULTS, write

OURS, THEIRS, OPENCL = "nv", "cuda", "opencl"
# Tensors are 256 MB of float32. OUTBOARD_BENCH_QUICK tries the script itself, on little
# data; its figures mean nothing.
IS_QUICK = os.environ.get("OUTBOARD_BENCH_QUICK") == "1"
SIDE = 512 if IS_QUICK else 8192
COUNT = SIDE * SIDE
BYTES = COUNT * 4
ROUNDS = 3 if IS_QUICK else 31


class NotAvailable(Exception):
    """The device lacks something that a case measures; the message says what."""


@dataclass(frozen=True)
class Case:
    """A statement over the names of `Bench.makers`, its repetitions, and the largest ratio to torch's device."""

    name: str
    statement: str
    loops: int
    bar: float
    target: str = ""  # the output of a bulk statement; a batch of these ends with a wait
    expected: str = ""  # the expected output, on the CPU
    moved: int = 0  # bytes read and written

    @property
    def is_bulk(self) -> bool:
        return bool(self.target)


CASES = [
    Case("empty", "empty(16, device=device)", 5000, 1.03),
    Case("allocate and free, changing sizes", "churn()", 200, 1.03),
    Case("set_stream", "set_stream(stream)", 5000, 1.03),
    Case("event record", "event.record(stream)", 5000, 1.03),
    Case("event query", "event.query()", 5000, 1.03),
    Case("stream wait for event", "stream.wait_event(event)", 5000, 1.03),
    Case("raw stream", "raw_stream(0)", 10000, 1.03),
    Case("synchronise, idle", "synchronize()", 2000, 1.03),
    Case(
        "host to device, pinned, 256 MB",
        "block.copy_(pinned, non_blocking=True)",
        4,
        1.03,
        "block",
        "pinned",
        BYTES,
    ),
    Case(
        "device to host, pinned, 256 MB",
        "pinned.copy_(other, non_blocking=True)",
        4,
        1.03,
        "pinned",
        "other.cpu()",
        BYTES,
    ),
    Case("device to device, 256 MB", "block.copy_(other)", 20, 1.01, "block", "other.cpu()", 2 * BYTES),
    Case("fill_, 256 MB", "block.fill_(1.5)", 20, 1.05, "block", "torch.full((COUNT,), 1.5)", BYTES),
    Case(
        "fill_ of float64, 256 MB",
        "doubles.fill_(1.1)",
        20,
        1.05,
        "doubles",
        "torch.full((COUNT // 2,), 1.1, dtype=torch.float64)",
        BYTES,
    ),
    Case("zero_, 256 MB", "block.zero_()", 20, 1.05, "block", "torch.zeros(COUNT)", BYTES),
    Case(
        "strided copy, transposed, 256 MB",
        "square.copy_(other_square.t())",
        20,
        1.2,
        "square",
        "other_square.cpu().t()",
        2 * BYTES,
    ),
    Case(
        "strided copy, permuted, 256 MB",
        "cube.copy_(other_cube.permute(2, 0, 1))",
        20,
        1.2,
        "cube",
        "other_cube.cpu().permute(2, 0, 1)",
        2 * BYTES,
    ),
    Case(
        "strided copy, every second, 128 MB",
        "half.copy_(other[::2])",
        20,
        1.2,
        "half",
        "other.cpu()[::2]",
        BYTES // 2 * 3,
    ),
    Case(
        "strided copy, rows with gaps, 256 MB",
        "square.copy_(wide[:, :SIDE])",
        20,
        1.2,
        "square",
        "wide.cpu()[:, :SIDE]",
        2 * BYTES,
    ),
    Case("graph replay of 100 copies", "graph.replay()", 50, 1.05, "graph_block", "torch.ones(1 << 18)"),
]

# Copies of the OpenCL driver against the CUDA driver's. The strided ones run kernels in both.
OPENCL_BAR = 1.2


class Bench:
    """The values that the statements use, on one device; each value is built when the first case needs it."""

    def __init__(self, name: str) -> None:
        import torch

        self.name = name
        self.torch = torch
        self.module = torch.get_device_module(name)
        self.device = torch.device(name, 0)
        self.made: dict[str, Any] = {"torch": torch, "COUNT": COUNT, "SIDE": SIDE}
        make = self.filled
        self.makers: dict[str, Callable[[], Any]] = {
            "empty": lambda: torch.empty,
            "device": lambda: self.device,
            "churn": self.churn,
            "set_stream": lambda: self.module.set_stream,
            "stream": lambda: self.module.current_stream(0),
            "event": self.event,
            "raw_stream": self.raw_stream,
            "synchronize": lambda: self.module.synchronize,
            "pinned": self.pinned,
            "block": lambda: torch.zeros(COUNT, device=self.device),
            "other": lambda: make(COUNT),
            "doubles": lambda: torch.zeros(COUNT // 2, dtype=torch.float64, device=self.device),
            "square": lambda: torch.zeros(SIDE, SIDE, device=self.device),
            "other_square": lambda: make(SIDE, SIDE),
            "cube": lambda: torch.zeros(256, SIDE // 16, SIDE // 16, device=self.device),
            "other_cube": lambda: make(SIDE // 16, SIDE // 16, 256),
            "half": lambda: torch.zeros(COUNT // 2, device=self.device),
            "wide": lambda: make(SIDE, SIDE + 64),
            "graph": self.graph,
            "graph_block": lambda: torch.zeros(1 << 18, device=self.device),
        }

    def names(self, *statements: str) -> dict[str, Any]:
        """Return the values that the statements use, ready on the device."""
        wanted = [name for statement in statements for name in compile(statement or "0", "", "eval").co_names]
        values = {name: self.value(name) for name in wanted if name in self.made or name in self.makers}
        self.module.synchronize()
        return values

    def value(self, name: str) -> Any:
        if name not in self.made:
            self.made[name] = self.makers[name]()
        return self.made[name]

    def filled(self, *sizes: int) -> Any:
        return self.torch.arange(math.prod(sizes), dtype=self.torch.float32).reshape(sizes).to(self.device)

    def churn(self) -> Callable[[], None]:
        """Return a function that makes eight allocations; each replaces an older one of another size."""
        sizes = [1 << 10, 3 << 20, 5 << 12, 1 << 20, 9 << 18, 700, 1 << 16, 30 << 20]
        kept: list[Any] = [None] * 8
        place, empty, device, dtype = 0, self.torch.empty, self.device, self.torch.uint8

        def churn() -> None:
            nonlocal place
            for size in sizes:
                place = (place + 3) % 8
                kept[place] = empty(size, dtype=dtype, device=device)

        return churn

    def event(self) -> Any:
        event = self.torch.Event(self.device)
        event.record(self.value("stream"))
        return event

    def raw_stream(self) -> Callable[[int], int]:
        if self.name == THEIRS:
            return self.torch._C._cuda_getCurrentRawStream
        from torch_outboard import _C

        return _C.current_raw_stream

    def pinned(self) -> Any:
        # If CUDA is available, pin_memory=True means CUDA's allocator, whatever device is attached.
        if self.name == THEIRS:
            return self.torch.ones(COUNT, pin_memory=True)
        return self.torch.ones(COUNT).pin_memory()

    def graph(self) -> Any:
        """Capture 100 copies of 1 MB between two blocks, the first of them into `graph_block`."""
        make = getattr(self.module, "CUDAGraph", None) or getattr(self.module, "Graph", None)
        if make is None or not hasattr(self.module, "graph"):
            raise NotAvailable(f"torch.{self.name} has no graphs")
        blocks = [self.torch.ones(1 << 18, device=self.device), self.value("graph_block")]
        try:
            graph = make()
            with self.module.graph(graph):
                for number in range(100):
                    blocks[(number + 1) % 2].copy_(blocks[number % 2])
        except NotImplementedError as error:
            raise NotAvailable(str(error)) from error
        self.made["graph_source"] = blocks[0]  # the graph reads it by address
        return graph


def sample(case: Case, timer: timeit.Timer, wait: Callable[[], None]) -> float:
    """Return the seconds per repetition."""
    wait()
    start = time.perf_counter()
    timer.timeit(case.loops)
    if case.is_bulk:
        wait()
    return (time.perf_counter() - start) / case.loops


def check_written(case: Case, bench: Bench) -> None:
    """Check the result of a copy: a fast copy must also be right."""
    names = bench.names(case.statement, case.target, case.expected)
    exec(case.statement, names)
    bench.module.synchronize()
    written = names[case.target].cpu()
    expected = eval(case.expected, names)
    if not bench.torch.equal(written, expected.contiguous()):
        raise AssertionError(f"{case.statement} wrote something else than {case.expected} on {bench.name}")


def measure(case: Case, benches: dict[str, Bench]) -> dict[str, Any]:
    """Return medians, samples and the ratio of our driver to torch's device."""
    names = {place: bench.names(case.statement) for place, bench in benches.items()}
    if case.is_bulk:
        check_written(case, next(iter(benches.values())))
    timers = {place: timeit.Timer(case.statement, globals=names[place]) for place in benches}
    samples: dict[str, list[float]] = {place: [] for place in benches}
    for number in range(-2, ROUNDS):
        # The order alternates, so that neither side always runs on the
        # state that the other one left.
        for place in sorted(timers, reverse=bool(number % 2)):
            seconds = sample(case, timers[place], benches[place].module.synchronize)
            if number >= 0:
                samples[place].append(seconds)
    result: dict[str, Any] = {"median": {place: statistics.median(values) for place, values in samples.items()}}
    result["samples"] = {place: [float(f"{value:.4g}") for value in values] for place, values in samples.items()}
    if OURS in samples and THEIRS in samples:
        pairs = zip(samples[OURS], samples[THEIRS], strict=True)
        result["ratio"] = statistics.median(ours / theirs for ours, theirs in pairs)
    return result


def run_section(driver: str) -> int:
    """Measure a driver, beside torch's own device on the same hardware; print a line of JSON for each case."""
    import torch

    import torch_outboard

    torch_outboard.attach(driver)
    name = torch_outboard.attached_driver().name
    benches = {driver: Bench(name)}
    if driver == OURS and torch.cuda.is_available():
        benches[THEIRS] = Bench(THEIRS)
    properties = torch.get_device_module(name).get_device_properties(0)
    about = {"name": properties.name, "driver_version": properties.driver_version, "torch": torch.__version__}
    print(json.dumps({"about": about}), flush=True)
    failures = 0
    for case in CASES:
        try:
            result = measure(case, benches)
        except NotAvailable as lack:
            result = {"skipped": str(lack)}
        except Exception as error:  # noqa: BLE001 - the other cases still run; this one fails the run below
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            failures += 1
        print(json.dumps({"case": case.name, **result}), flush=True)
    return 1 if failures else 0


def text_of(case: Case, seconds: float | None) -> str:
    if seconds is None:
        return ""
    if case.moved:
        return f"{case.moved / seconds / 1e9:,.1f} GB/s"
    return f"{seconds * 1e9:,.0f} ns"


def is_copy(case: Case) -> bool:
    return "copy_" in case.statement


@dataclass
class Report:
    """The figures so far, the missed bars and the cases that were not measured."""

    sections: dict[str, dict[str, Any]]
    misses: list[str]
    notes: list[str]

    def result(self, section: str, case: Case) -> dict[str, Any]:
        return self.sections.get(section, {}).get("cases", {}).get(case.name, {})

    def row(self, case: Case) -> str:
        ours, opencl = self.result(OURS, case), self.result(OPENCL, case)
        own = ours.get("median", {})
        ratio, verdict = ours.get("ratio"), ""
        if ratio is not None:
            verdict = "yes" if ratio <= case.bar else "no"
            if ratio > case.bar:
                self.misses.append(f"{case.name}: {ratio:.3f} times torch's, the bar is {case.bar}")
        seconds, relation = opencl.get("median", {}).get(OPENCL), ""
        if seconds is not None and OURS in own:
            times = seconds / own[OURS]
            relation = f"{times:.2f}"
            if is_copy(case):
                relation += f" (at most {OPENCL_BAR}: {'yes' if times <= OPENCL_BAR else 'no'})"
                if times > OPENCL_BAR:
                    self.misses.append(f"{case.name}: opencl takes {times:.2f} times as long as {OURS}")
        for section, case_row in ((OURS, ours), (OPENCL, opencl)):
            if why := case_row.get("error") or case_row.get("skipped"):
                self.notes.append(
                    f"{case.name}, {section}: {'failed, ' if 'error' in case_row else 'not there, '}{why.rstrip('.')}."
                )
        cells = [case.name, text_of(case, own.get(OURS)), text_of(case, own.get(THEIRS))]
        cells += [f"{ratio:.3f}" if ratio is not None else "", str(case.bar), verdict, text_of(case, seconds), relation]
        return f"| {' | '.join(cells)} |"


def report_of(sections: dict[str, dict[str, Any]], today: str) -> tuple[str, Report]:
    """Return the report as Markdown, and the report."""
    report = Report(sections, [], [])
    about = sections.get(OURS, sections.get(OPENCL, {})).get("about", {})
    note = ", far too few and small to mean anything" if IS_QUICK else ""
    lines = [
        f"# {about.get('name')}, CUDA {about.get('driver_version')}, torch {about.get('torch')}, {today}",
        "",
        f"Medians of {ROUNDS} rounds{note}, {os.cpu_count()} CPU cores, Python {platform.python_version()}. "
        f"`{OURS}` and torch's {THEIRS} take turns in one process, and opencl runs in a separate process.",
        "",
        f"| case | {OURS} | torch's {THEIRS} | ratio | at most | holds | opencl | to {OURS} |",
        "|---|---:|---:|---:|---:|---|---:|---:|",
        *(report.row(case) for case in CASES),
    ]
    for title, sentences in (("Bars that are missed", report.misses), ("Not measured", report.notes)):
        if sentences:
            lines += ["", f"{title}:", "", *(f"- {sentence}" for sentence in sentences)]
    return "\n".join([*lines, ""]), report


def measure_in_child(section: str, on_line: Callable[[dict[str, Any]], None]) -> int:
    """Run a section in a child process and pass on each result as it arrives."""
    command = [sys.executable, __file__, "--section", section]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                on_line(json.loads(line))
            else:
                print(line, end="")
    return child.returncode


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia").exists() or Path("/dev/nvidia0").exists()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--section", choices=[OURS, OPENCL], help=argparse.SUPPRESS)
    parser.add_argument("--anywhere", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.section:
        return run_section(options.section)
    if not has_gpu() and not options.anywhere:
        print("There is no NVIDIA GPU here. On a machine with one: benchmarks/gpu.sh")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    today = datetime.date.today().isoformat()
    sections: dict[str, dict[str, Any]] = {}
    failed = []
    for section in (OURS, OPENCL):
        content: dict[str, Any] = sections.setdefault(section, {"about": {}, "cases": {}})

        def keep(line: dict[str, Any], content: dict[str, Any] = content) -> None:
            content["about"] |= line.pop("about", {})
            if name := line.pop("case", None):
                content["cases"][name] = line
            # Write at once: a crash of a later case must not lose the earlier results.
            write(options.out / "gpu.json", {"date": today, "sections": sections})
            (options.out / "gpu.md").write_text(report_of(sections, today)[0])

        if status := measure_in_child(section, keep):
            failed.append(f"{section}: the measurement ended with status {status}")
    text, report = report_of(sections, today)
    print("\n".join([text, *failed]))
    return 1 if failed or (options.check and report.misses) else 0


if __name__ == "__main__":
    sys.exit(main())
