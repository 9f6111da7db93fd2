# SPDX-License-Identifier: BSD-3-Clause
"""Runs the operator database on a driver outside pytest and prints what failed, grouped by cause.

    python -m tests.opinfo.report --driver NAME [--option KEY=VALUE ...] [--compiled first|all]
        [--only REGEX] [--jobs N] [--json FILE]

With `--compiled`, the first samples or all in float32 are compared with the eager calls on the same device, for which
`--driver cpu` is the reference. Entries run in child processes. A child that dies or hangs takes one entry along, which
is then told as the cause.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
from collections import defaultdict
from multiprocessing.connection import Connection, wait
from typing import Any

HANG_SECONDS = 300


def _todo(compiled: str) -> list[tuple[Any, Any]]:
    """Gives the entries with their element types, in the order of their numbers."""
    import torch

    from .samples import entries

    if not compiled:
        return list(entries())
    return [(info, dtype) for info, dtype in entries() if dtype == torch.float32]


def _work(pipe: Connection, driver: str, options: dict[str, str], compiled: str, threads: int) -> None:
    """Child: answers each entry number with what came of the entry."""
    import torch

    import torch_outboard

    if driver != "cpu":
        torch_outboard.attach(driver, **options)
    torch.set_num_threads(threads)
    from .compiled import check_compiled
    from .harness import check

    device = torch.device(driver) if driver == "cpu" else torch.device(driver, 0)
    todo = _todo(compiled)
    while (number := pipe.recv()) is not None:
        start = time.perf_counter()
        try:
            if compiled:
                report = check_compiled(todo[number][0], device, 1 if compiled == "first" else None)
            else:
                report = check(*todo[number], device)
            failures = [(failure.kind, str(failure.sample), failure.message) for failure in report.failures]
            result: dict[str, Any] = {"failures": failures, "strides": report.strides, "samples": report.samples}
        except Exception as error:  # the harness itself failed on this entry: told like any other cause
            result = {"failures": [("harness", "-", f"{type(error).__name__}: {error}")], "strides": [], "samples": 0}
        result["seconds"] = time.perf_counter() - start
        pipe.send((number, result))


class _Child:
    """A child process, the entry it is busy with and since when."""

    def __init__(self, options: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        threads = max(1, (os.cpu_count() or 1) // options.jobs)
        arguments = (theirs, options.driver, dict(options.option), options.compiled, threads)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.number: int | None = None
        self.since = time.monotonic()

    def give(self, number: int | None) -> None:
        self.number = number
        self.since = time.monotonic()
        self.pipe.send(number)

    def end(self) -> int | None:
        self.process.kill()
        self.process.join()
        return self.process.exitcode


def _lost(kind: str, message: str) -> dict[str, Any]:
    return {"failures": [(kind, "-", message)], "strides": [], "samples": 0, "seconds": 0.0}


def run_all(numbers: list[int], options: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """Gives what came of each entry, by its number."""
    results: dict[int, dict[str, Any]] = {}
    todo = list(reversed(numbers))
    children = []
    for _ in range(min(options.jobs, len(todo))):
        children.append(_Child(options))
        children[-1].give(todo.pop())
    while children:
        ready = wait([child.pipe for child in children], timeout=5)
        for child in list(children):
            if child.pipe in ready:
                try:
                    number, results_of = child.pipe.recv()
                    results[number] = results_of
                except EOFError:
                    child.process.join()
                    results[child.number] = _lost("crash", f"the process ended with {child.process.exitcode}")
                    children[children.index(child)] = child = _Child(options)
            elif time.monotonic() - child.since > HANG_SECONDS:
                child.end()
                results[child.number] = _lost("hang", f"no answer in {HANG_SECONDS} s")
                children[children.index(child)] = child = _Child(options)
            else:
                continue
            if todo:
                child.give(todo.pop())
            else:
                child.end()
                children.remove(child)
    return results


def cause(kind: str, message: str) -> str:
    """Gives a failure's text without what differs from sample to sample."""
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
    bare = {name.rsplit("-", 1)[0] for name in failed}
    strides = [name for name, result in results.items() if result["strides"]]
    total = {name.rsplit("-", 1)[0] for name in results}
    print(f"\n{len(results) - len(failed)} of {len(results)} entry and type pairs pass", end="; ")
    print(f"{len(total) - len(bare)} of {len(total)} entries ({1 - len(bare) / max(1, len(total)):.2%})")
    print(f"{sum(result['samples'] for result in results.values())} samples; {len(strides)} pairs with other strides")
    print(f"failed and not listed: {len(failed - set(listed))}; listed and passed: {len(set(listed) - failed)}")


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
    parser.add_argument("--only", default="", help="regular expression for name-dtype")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", help="file for the details")
    options = parser.parse_args()

    from . import compiled_lists, lists
    from .samples import dtype_name, entry_name

    names = {}
    listed = {}
    for number, (info, dtype) in enumerate(_todo(options.compiled)):
        name = entry_name(info, dtype)
        if not re.search(options.only, name):
            continue
        is_compiled = bool(options.compiled)
        gap = (
            compiled_lists.gap(info.full_name, all_samples=options.compiled == "all")
            if is_compiled
            else lists.gap(info.full_name, dtype_name(dtype))
        )
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
