# SPDX-License-Identifier: BSD-3-Clause
"""Recorded allocations of training runs, and a simple allocator for comparison.

    python benchmarks/_traces.py --driver NAME

records new traces into traces/. A trace is a list of numbers: n > 0 allocates n bytes, n < 0 frees the memory of the
-n-th allocation.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

FOLDER = Path(__file__).resolve().parent / "traces"
ROOT = FOLDER.parent.parent
NAMES = ("digits", "transformer", "transformer_varying")


def load(name: str) -> list[int]:
    """Return a recorded trace."""
    trace: list[int] = json.loads((FOLDER / f"{name}.json").read_text())
    return trace


class SimpleAllocator:
    """An allocator that keeps freed memory for the next request of the same power of two, and never splits or joins."""

    def __init__(self) -> None:
        self.cached: Counter[int] = Counter()
        self.live: dict[int, tuple[int, int]] = {}
        self.allocated = self.reserved = self.max_allocated = 0

    def replay(self, trace: list[int]) -> float:
        """Return peak reserved over peak allocated; allocations count in multiples of 512 bytes, like ours."""
        count = 0
        for number in trace:
            if number < 0:
                size, bucket = self.live.pop(-number)
                self.allocated -= size
                self.cached[bucket] += 1
                continue
            count += 1
            size = (number + 511) // 512 * 512
            bucket = max(512, 1 << (number - 1).bit_length())
            if self.cached[bucket]:
                self.cached[bucket] -= 1
            else:
                self.reserved += bucket
            self.live[count] = (size, bucket)
            self.allocated += size
            self.max_allocated = max(self.max_allocated, self.allocated)
        return self.reserved / self.max_allocated


# ---- Recording ----

# Models and their optimizers, so that they are alive when a trace ends.
ALIVE: list[object] = []


def digits(device: torch.device) -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "examples"))
    from digits import DigitsNet

    model = DigitsNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ALIVE.append((model, optimizer))
    for _ in range(12):
        images, labels = torch.rand(64, 1, 8, 8).to(device), torch.randint(10, (64,)).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        yield


def transformer(device: torch.device, lengths: list[int]) -> Iterator[None]:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 4), nn.Linear(256, 1000)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    ALIVE.append((model, optimizer))
    for length in lengths:
        tokens = torch.randint(1000, (8, length + 1)).to(device)
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        yield


RUNS: dict[str, Callable[[torch.device], Iterator[None]]] = {
    "digits": digits,
    "transformer": lambda device: transformer(device, [128] * 6),
    "transformer_varying": lambda device: transformer(device, random.Random(1).sample(range(16, 320), 20)),
}


def record(name: str, device: torch.device) -> list[int]:
    memory = torch.get_device_module(device).memory
    memory._record_memory_history(context=None, clear_history=True)
    for _ in RUNS[name](device):
        pass
    torch.accelerator.synchronize(device)
    entries = memory._snapshot()["device_traces"][device.index]
    memory._record_memory_history(None)
    ALIVE.clear()
    trace: list[int] = []
    numbers: dict[int, int] = {}
    count = 0
    for entry in entries:
        if entry["action"] == "alloc":
            count += 1
            numbers[entry["addr"]] = count
            trace.append(entry["size"])
        elif entry["action"] == "free_completed" and entry["addr"] in numbers:
            trace.append(-numbers.pop(entry["addr"]))
    return trace


def main() -> None:
    import torch_outboard

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", default="sim", help="whose memory")
    arguments = parser.parse_args()
    torch_outboard.attach(arguments.driver)
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        torch.manual_seed(0)
        trace = record(name, torch.device(arguments.driver, 0))
        text = json.dumps(trace)
        (FOLDER / f"{name}.json").write_text(text.replace(", ", ",") + "\n")
        print(f"{name}: {len(trace)} entries, {sum(number > 0 for number in trace)} allocations")


if __name__ == "__main__":
    main()
