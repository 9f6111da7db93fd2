# SPDX-License-Identifier: BSD-3-Clause
"""Two processes that take turns: the driver's device and torch's CUDA.

Autograd supports one accelerator in a process, so each device has its own. A process first prints what it is, then for
each line of its input a step, all as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _results import about

Step = dict[str, Any]


def open_device(driver: str) -> tuple[Any, dict[str, object]]:
    """Attach the driver, unless it is "cuda" or "cpu", and return its first device, and what is known of it."""
    import torch

    import torch_outboard

    if driver in ("cuda", "cpu"):
        return torch.device(driver, 0), {}
    module = torch_outboard.attach(driver)
    name = module.__name__.rpartition(".")[2]
    return torch.device(name, 0), about(module.get_device_properties(0))


def parser_of(doc: str) -> argparse.ArgumentParser:
    """Return a parser of the options that both sides have; --serve names what a process serves."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--driver", default="nv")
    parser.add_argument("--against", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small models, for a try")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    return parser


def serve_or_run(
    options: argparse.Namespace, step_of: Callable[[Any], Callable[[], Step]], run: Callable[[argparse.Namespace], int]
) -> int:
    """Serve the step that `step_of` makes for a device if a side is asked for, else run, and return the status."""
    if options.serve:
        device, about = open_device(options.driver)
        serve(about, step_of(device))
        return 0
    import torch

    if options.against == "cuda" and not torch.cuda.is_available():
        print("It needs a GPU and a CUDA build of torch.")
        return 0
    return run(options)


def serve(about: dict[str, object], step: Callable[[], Step]) -> None:
    """Print what was found, and a step for each line of the input."""
    print(json.dumps(about), flush=True)
    for _ in sys.stdin:
        print(json.dumps(step()), flush=True)


class StepProcess:
    """A process that serves steps. Ends the program if the process ends before its time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.found = self._answer()

    def step(self) -> Step:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Step:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a training ended before its time; its error stands above")
        answer: Step = json.loads(line)
        return answer


@contextlib.contextmanager
def step_process(script: str, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[StepProcess]:
    """Run a script that serves steps, in a scope, with variables added to the environment."""
    words = [sys.executable, script, *options]
    variables = {**os.environ, **(environment or {})}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        try:
            yield StepProcess(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def ratio_of(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of the pairs' ratios, and the upper end of its 95 % interval.

    The interval is that of order statistics, which assumes no distribution.
    """
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    rank = math.ceil(len(ratios) / 2 + 1.96 * math.sqrt(len(ratios)) / 2)
    return statistics.median(ratios), ratios[min(rank, len(ratios)) - 1]
