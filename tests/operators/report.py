# SPDX-License-Identifier: BSD-3-Clause
"""Run the operator database on a driver outside pytest and print the failures, grouped by cause.

    python -m tests.operators.report --driver NAME [--option KEY=VALUE ...] [--compiled first|all]
        [--only REGEX] [--again FILE] [--jobs N] [--json FILE]

By default the first samples of each check are tried, under OUTBOARD_TEST_SAMPLES=all all of them. `--compiled` compares
the first or all samples in float32 with the eager calls on the same device; `--driver cpu` is the reference for it.
Entries run in child processes. A child that dies or hangs takes one entry along, and the report names this as the
cause.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import defaultdict
from multiprocessing.connection import Connection
from typing import Any

from torch_outboard.testing.children import NoAnswer, run_in_children


def _todo(compiled: str) -> list[Any]:
    """Return the cases of the eager checks, or the entries to compile, in the order of their numbers."""
    from .checks import cases
    from .test_compiled import ENTRIES

    return ENTRIES if compiled else list(cases())


def _work(pipe: Connection, driver: str, options: dict[str, str], compiled: str, threads: int) -> None:
    """Answer each entry number with the results of the entry, in a child."""
    import torch

    import torch_outboard

    name = "cpu" if driver == "cpu" else torch_outboard.attach(driver, **options).__name__.rpartition(".")[2]
    torch.set_num_threads(threads)
    from .compiled import check_compiled
    from .test_opinfo import report_of

    device = torch.device(name) if name == "cpu" else torch.device(name, 0)
    todo = _todo(compiled)
    while (number := pipe.recv()) is not None:
        start = time.perf_counter()
        try:
            if compiled:
                report = check_compiled(todo[number], device, 1 if compiled == "first" else None)
            else:
                report = report_of(todo[number], device)
            failures = [(failure.kind, str(failure.sample), failure.message) for failure in report.failures]
            result: dict[str, Any] = {"failures": failures, "samples": report.samples}
        except Exception as error:  # the harness itself failed on this entry: reported like any other cause
            result = {"failures": [("harness", "-", f"{type(error).__name__}: {error}")], "samples": 0}
        result["seconds"] = time.perf_counter() - start
        pipe.send((number, result, True))


def run_all(numbers: list[int], options: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """Return the results of each entry, by its number."""
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    arguments = (options.driver, dict(options.option), options.compiled, threads)
    return {
        number: {"failures": [(result.kind, "-", result.message)], "samples": 0, "seconds": 0.0}
        if isinstance(result, NoAnswer)
        else result
        for number, result in run_in_children(_work, arguments, numbers, options.jobs)
    }


def cause(kind: str, message: str) -> str:
    """Return a failure's text without the parts that differ between samples."""
    first = message.splitlines()[0] if message else ""
    if kind.endswith("values"):
        first = re.sub(r".*?: (\d+ of \d+)", r"\1", first)
    first = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", first)
    return f"{kind}: {first[:160]}"


def print_summary(results: dict[str, dict[str, Any]], listed: dict[str, str]) -> None:
    groups: dict[str, set[str]] = defaultdict(set)
    for name, result in results.items():
        for kind, _, message in result["failures"]:
            groups[cause(kind, message)].add(name)
    for text, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(names):4d}  {text}")
        print("      " + ", ".join(sorted(names)[:12]) + (" …" if len(names) > 12 else ""))
    failed = {name for name, result in results.items() if result["failures"]}
    seconds: dict[str, float] = defaultdict(float)
    for name, result in results.items():
        seconds[name.partition("-")[0]] += result["seconds"]
    print("\nseconds: " + ", ".join(f"{check} {spent:.0f}" for check, spent in seconds.items()))
    print(f"{len(results) - len(failed)} of {len(results)} cases pass", end="; ")
    print(f"{sum(result['samples'] for result in results.values())} samples")
    print(f"failed and not listed: {len(failed - set(listed))}; listed and passed: {len(set(listed) - failed)}")


def _name_and_gap(item: Any, compiled: str) -> tuple[str, Any]:
    from . import compiled_lists, lists
    from .samples import ALL_SAMPLES, dtype_name

    if compiled:
        return item.full_name, compiled_lists.gap(item.full_name, all_samples=compiled == "all")
    entry = item.info.full_name
    return item.name, lists.gap(item.check.name, entry, dtype_name(item.dtype), all_samples=ALL_SAMPLES)


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", required=True, help="name of the driver to attach")
    parser.add_argument("--option", action="append", default=[], type=_pair, metavar="KEY=VALUE")
    parser.add_argument("--compiled", default="", choices=["first", "all"], help="samples of each entry to compile")
    parser.add_argument("--only", default="", help="regular expression for check-name-dtype")
    parser.add_argument("--again", default="", metavar="FILE", help="only what failed in the details of an earlier run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", help="file for the details")
    options = parser.parse_args()

    again = None
    if options.again:
        with open(options.again) as file:
            again = {name for name, result in json.load(file).items() if result["failures"]}
    names = {}
    listed = {}
    for number, item in enumerate(_todo(options.compiled)):
        name, gap = _name_and_gap(item, options.compiled)
        if not re.search(options.only, name) or (again is not None and name not in again):
            continue
        if gap is not None:
            listed[name] = gap.reason
        if gap is None or not gap.crashes:
            names[number] = name
    by_number = run_all(list(names), options)
    results = {names[number]: result for number, result in sorted(by_number.items())}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    print_summary(results, listed)
    return 0 if {name for name, result in results.items() if result["failures"]} == set(listed) else 1


if __name__ == "__main__":
    sys.exit(main())
