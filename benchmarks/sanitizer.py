# SPDX-License-Identifier: BSD-3-Clause
"""Measure the cost of the stream sanitizer: a training step of a small transformer, with and without it.

Both steps alternate in one process; the figure is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from _results import RESULTS, about, write
from torch import nn

import torch_outboard
from torch_outboard import sanitizer

MAX_SLOWDOWN = 5.0  # times a step without it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="sim")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, default=RESULTS / "sanitizer.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch_outboard.attach(options.driver)
    name = torch.accelerator.current_accelerator().type
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(name)
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(4, 32, 64, device=name)

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        torch.accelerator.synchronize()
        return (time.perf_counter() - start) * 1e3

    step()
    off, on = [], []
    for _ in range(options.rounds):
        off.append(step())
        sanitizer.enable()
        on.append(step())
        sanitizer.disable()
        if sanitizer.races():
            raise RuntimeError(f"the step has no race, but this was reported: {sanitizer.races()[0]}")
    ratio = statistics.median(with_it / without for with_it, without in zip(on, off, strict=True))
    figures = {"off_ms": statistics.median(off), "on_ms": statistics.median(on), "ratio": ratio}
    times = f"off {figures['off_ms']:.2f} ms, on {figures['on_ms']:.2f} ms"
    print(f"{times}: {ratio:.2f} times (to reach: at most {MAX_SLOWDOWN})")
    properties = torch.get_device_module(name).get_device_properties(0)
    write(options.json, {"about": about(properties), "rounds": options.rounds, **figures})
    return int(ratio > MAX_SLOWDOWN)


if __name__ == "__main__":
    sys.exit(main())
