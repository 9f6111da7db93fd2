# SPDX-License-Identifier: BSD-3-Clause
"""Measures a training step of GPT-2 small with random weights on a GPU against torch's own CUDA device.

    benchmarks/gpt2.py --driver nv          # or opencl, with OUTBOARD_OPENCL_PLATFORM=NVIDIA

No operator runs on the CPU. Autograd knows one accelerator in a process, so each device has its own; they take turns,
from the same weights and tokens, and their first losses have to agree. A figure is the median of the steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from _results import RESULTS, about, write

os.environ.setdefault("OUTBOARD_FALLBACK", "error")
os.environ.setdefault("USE_TF", "0")

import torch
import torch.nn.functional as F
import transformers

import torch_outboard

BATCH, LENGTH = 4, 512
WARM = 3
# Losses of the first steps may differ by this part.
TOLERANCE = {"float32": 2e-3, "bfloat16": 3e-2}


class Training:
    """A model on a device, its optimizer, its tokens."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        config = transformers.GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False)
        torch.manual_seed(1)
        self.model = transformers.GPT2LMHeadModel(config).to(dtype).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(50257, (BATCH, LENGTH + 1)).to(device)
        self.device = device

    def step(self) -> dict[str, float]:
        self.wait()
        begin = time.perf_counter()
        logits = self.model(self.tokens[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), self.tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        queued = time.perf_counter()
        self.wait()
        end = time.perf_counter()
        return {"loss": loss.item(), "queued": (queued - begin) * 1e3, "milliseconds": (end - begin) * 1e3}

    def wait(self) -> None:
        torch.get_device_module(self.device).synchronize()


def serve(driver: str, dtype: str) -> None:
    """Trains on a device, a step for each line of the input."""
    device = torch.device("cuda", 0)
    properties: object = None
    if driver != "cuda":
        module = torch_outboard.attach(driver)
        device = torch.device(torch_outboard.attached_driver().name, 0)
        properties = module.get_device_properties(0)
    training = Training(device, getattr(torch, dtype))
    print(json.dumps(about(properties) if properties is not None else {}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(training.step()), flush=True)


@contextlib.contextmanager
def served(driver: str, dtype: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, __file__, "--driver", driver, "--serve", dtype]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def answer(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a training ended before its time; its error stands above")
    found: dict[str, float] = json.loads(line)
    return found


def step(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return answer(process)


def measure(driver: str, dtype: str, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    with served(driver, dtype) as ours, served("cuda", dtype) as theirs:
        found, _ = answer(ours), answer(theirs)
        steps = [(step(ours), step(theirs)) for _ in range(WARM + rounds)]
    for one, other in steps[:WARM]:
        if not abs(one["loss"] - other["loss"]) <= TOLERANCE[dtype] * abs(other["loss"]):
            raise SystemExit(f"the losses differ: {one['loss']} on {driver}, {other['loss']} on CUDA")
    taken = steps[WARM:]
    return found, {
        "first": steps[0][0]["milliseconds"],
        "queued": statistics.median(one["queued"] for one, _ in taken),
        "ours": statistics.median(one["milliseconds"] for one, _ in taken),
        "theirs": statistics.median(other["milliseconds"] for _, other in taken),
        "ratio": statistics.median(one["milliseconds"] / other["milliseconds"] for one, other in taken),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="nv")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.driver, options.serve)
        return 0
    if not torch.cuda.is_available():
        print("It needs a GPU and a CUDA build of torch.")
        return 0
    print(f"{BATCH} rows of {LENGTH} tokens\n")
    print("| type | first step, ms | queued, ms | a step, ms | torch's CUDA, ms | ratio |")
    print("|---|---:|---:|---:|---:|---:|")
    rows = {}
    for dtype in TOLERANCE:
        found, row = measure(options.driver, dtype, options.rounds)
        rows[dtype] = row
        times = " | ".join(f"{row[name]:.1f}" for name in ("first", "queued", "ours", "theirs", "ratio"))
        print(f"| {dtype} | {times} |", flush=True)
    write(options.json or RESULTS / f"gpt2-{options.driver}.json", {"about": found, "milliseconds": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
