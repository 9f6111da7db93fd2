# SPDX-License-Identifier: BSD-3-Clause
"""Measure a training step of GPT-2 small with random weights on a GPU against torch's own CUDA device.

    benchmarks/gpt2.py --driver nv          # or opencl, with OUTBOARD_OPENCL_PLATFORM=NVIDIA
    benchmarks/gpt2.py --compile --batch 8  # loss and optimizer by torch.compile

A type is the weights' dtype, or "autocast": float32 weights under torch.autocast in bfloat16. No operator runs on the
CPU. The device and CUDA take turns in processes of their own, from the same weights and tokens, and their first losses
must agree. A figure is the median of the steps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

from _results import results_of, write
from _step_process import open_device, serve, step_process

os.environ.setdefault("OUTBOARD_FALLBACK", "error")
os.environ.setdefault("USE_TF", "0")

import torch
import torch.nn.functional as F
import transformers

LENGTH = 512
WARMUP_STEPS = 3
# Losses of the first steps may differ by this part.
TOLERANCE = {"float32": 2e-3, "bfloat16": 3e-2, "autocast": 1e-2}


class Training:
    """A model on a device, with its optimizer and its tokens."""

    def __init__(self, device: torch.device, kind: str, batch: int, is_compiled: bool) -> None:
        config = transformers.GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False)
        torch.manual_seed(1)
        weights = torch.float32 if kind == "autocast" else getattr(torch, kind)
        self.model = transformers.GPT2LMHeadModel(config).to(weights).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(50257, (batch, LENGTH + 1)).to(device)
        self.device = device
        self.is_autocast = kind == "autocast"
        self.loss, self.update = self._loss, self.optimizer.step
        if is_compiled:
            self.loss, self.update = torch.compile(self._loss), torch.compile(self.optimizer.step)

    def _loss(self) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_autocast):
            logits = self.model(self.tokens[:, :-1]).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), self.tokens[:, 1:].flatten())

    def step(self) -> dict[str, float]:
        self.wait()
        begin = time.perf_counter()
        loss = self.loss()
        loss.backward()
        self.update()
        self.optimizer.zero_grad()
        queued = time.perf_counter()
        self.wait()
        end = time.perf_counter()
        return {"loss": loss.item(), "queued": (queued - begin) * 1e3, "milliseconds": (end - begin) * 1e3}

    def wait(self) -> None:
        torch.get_device_module(self.device).synchronize()


def run(driver: str, kind: str, batch: int, is_compiled: bool) -> None:
    """Train on a device, one step for each line of the input."""
    device, about = open_device(driver)
    serve(about, Training(device, kind, batch, is_compiled).step)


def measure(kind: str, options: argparse.Namespace) -> tuple[dict[str, float], dict[str, float]]:
    driver = options.driver
    words = ["--serve", kind, "--batch", str(options.batch), *(["--compile"] if options.compile else [])]
    with (
        step_process(__file__, "--driver", driver, *words) as ours,
        step_process(__file__, "--driver", "cuda", *words) as theirs,
    ):
        steps = [(ours.step(), theirs.step()) for _ in range(WARMUP_STEPS + options.rounds)]
    for step, cuda in steps[:WARMUP_STEPS]:
        if not abs(step["loss"] - cuda["loss"]) <= TOLERANCE[kind] * abs(cuda["loss"]):
            raise SystemExit(f"the losses differ: {step['loss']} on {driver}, {cuda['loss']} on CUDA")
    timed = steps[WARMUP_STEPS:]
    return ours.found, {
        "first": steps[0][0]["milliseconds"],
        "their first": steps[0][1]["milliseconds"],
        "queued": statistics.median(step["queued"] for step, _ in timed),
        "ours": statistics.median(step["milliseconds"] for step, _ in timed),
        "theirs": statistics.median(cuda["milliseconds"] for _, cuda in timed),
        "ratio": statistics.median(step["milliseconds"] / cuda["milliseconds"] for step, cuda in timed),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="nv")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batch", type=int, default=4, metavar="ROWS")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--types", default=",".join(TOLERANCE), metavar="TYPE,...")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run(options.driver, options.serve, options.batch, options.compile)
        return 0
    if not torch.cuda.is_available():
        print("It needs a GPU and a CUDA build of torch.")
        return 0
    print(f"{options.batch} rows of {LENGTH} tokens{', compiled' if options.compile else ''}\n")
    print("| type | first step, ms | torch's first, ms | queued, ms | a step, ms | torch's CUDA, ms | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    rows = {}
    for kind in options.types.split(","):
        about, row = measure(kind, options)
        rows[kind] = row
        columns = ("first", "their first", "queued", "ours", "theirs", "ratio")
        print(f"| {kind} | {' | '.join(f'{row[name]:.2f}' for name in columns)} |", flush=True)
    name = f"gpt2{'-compiled' if options.compile else ''}-{options.driver}.json"
    write(options.json or results_of(options.driver) / name, {"about": about, "milliseconds": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
