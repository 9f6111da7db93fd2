# SPDX-License-Identifier: BSD-3-Clause
"""How often twenty seeds show a planted missing wait, by the number of operators queued before it.

    PYTHONPATH=.. python -m unit.planted_waits        # in tests/: the table of docs/races.md, in six minutes

A trial is the search of `outboard race` for one program: the seeds run one after another, each in its own process,
until the results are wrong. The processes are forked from one that has imported torch, so a seed takes 0.2 s.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

import torch_outboard

# What attaching imports: once, not in each forked process.
for name in ("torch._dynamo", "torch_outboard._C", "torch_outboard.compile.register", "torch_outboard.device"):
    importlib.import_module(name)

DISTANCES = (0, 2, 8, 16, 64)
PLACES = ("reader", "writer", "both", "three streams")
SEEDS = 20
_ROUNDS = 3
_ELEMENTS = 64


class Program(NamedTuple):
    """A program whose default stream reads what a side stream copies to the device, and does not wait for it.

    `distance` operators are queued before the read, before the copy, or before both; for "three streams" before the
    read, while two more streams work. The values of each round are those of the last one if `is_equal`. `waits` is the
    repaired twin.
    """

    place: str
    distance: int
    is_equal: bool
    waits: bool = False

    def is_wrong(self) -> bool:
        """Run the program, and return whether a result shows the missing wait."""
        module = torch.get_device_module("sim")
        side = module.Stream()
        busy = [module.Stream(), module.Stream()] if self.place == "three streams" else []
        values = torch.arange(float(_ELEMENTS))
        for _ in range(_ROUNDS):
            for stream in busy:
                self.work(stream)
            if self.place in ("writer", "both"):
                self.work(side)
            with module.stream(side):
                copied = values.pin_memory().to("sim", non_blocking=True)
            if self.place != "writer":
                self.work(module.current_stream())
            if self.waits:
                module.current_stream().wait_stream(side)
                copied.record_stream(module.current_stream())
            result = (copied * 2).cpu()
            if not torch.equal(result, values * 2):
                return True
            module.synchronize()
            values = values if self.is_equal else values + 1
            del copied
        return False

    def work(self, stream: torch.Stream) -> None:
        with torch.get_device_module("sim").stream(stream):
            x = torch.zeros(_ELEMENTS, device="sim")
            for _ in range(self.distance):
                x = x + 1


def programs(waits: bool = False) -> Iterator[Program]:
    for place, is_equal, distance in itertools.product(PLACES, (True, False), DISTANCES):
        yield Program(place, distance, is_equal, waits)


def _are_wrong(seed: int, wanted: Sequence[Program]) -> list[bool]:
    """Return which programs this seed shows. Each runs on a driver that has run no other."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(read)
        torch_outboard.attach("sim", schedule=f"pct:{seed}", poison=1)  # opens no device, so it may fork
        statuses = bytearray()
        for program in wanted:
            if (grandchild := os.fork()) == 0:
                signal.alarm(60)
                os._exit(10 + program.is_wrong())
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) & 0xFF)
        os.write(write, statuses)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        statuses = bytearray(file.read())
    os.waitpid(child, 0)
    if len(statuses) != len(wanted) or not {*statuses} <= {10, 11}:
        raise RuntimeError(f"seed {seed}: the programs end with {list(statuses)}, not 10 or 11")
    return [status == 11 for status in statuses]


def hidden_in(trial: int, waits: bool = False) -> list[Program]:
    """Return the programs that twenty seeds of their own do not show."""
    hidden = list(programs(waits))
    for seed in range(SEEDS * trial, SEEDS * (trial + 1)):
        shown = _are_wrong(seed, hidden)
        hidden = [program for program, is_shown in zip(hidden, shown, strict=True) if not is_shown]
        if not hidden:
            break
    return hidden


def found(first: int, trials: int) -> dict[Program, int]:
    """Return in how many trials each program's race is found."""
    gc.collect()
    gc.freeze()
    counts = dict.fromkeys(programs(), trials)
    for trial in range(first, first + trials):
        for program in hidden_in(trial):
            counts[program] -= 1
    return counts


def print_found(first: int, trials: int) -> None:
    """Print it as JSON."""
    print(json.dumps([[*program, count] for program, count in found(first, trials).items()]))


def main() -> None:
    counts = found(0, int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    print(f"| operators lie before | values | {' | '.join(map(str, DISTANCES))} |")
    print(f"|---|---|{'---|' * len(DISTANCES)}")
    for place, is_equal in itertools.product(PLACES, (True, False)):
        cells = (str(counts[Program(place, distance, is_equal)]) for distance in DISTANCES)
        print(f"| {place} | {'equal' if is_equal else 'new'} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
