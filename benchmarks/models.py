# SPDX-License-Identifier: BSD-3-Clause
"""Measure training steps of published architectures with random weights on a GPU against torch's own CUDA device.

    benchmarks/models.py                          # nv against CUDA
    benchmarks/models.py --only resnet50,gpt2     # leaves the other models' figures as they are
    benchmarks/models.py --driver sim --against cpu --tiny    # a try without a GPU
    benchmarks/models.py --driver tests.simt_drivers:Unbuilt --plans    # what a pack of the other models would lack
    benchmarks/models.py --driver cuda --nudged --only t5     # how far rounding alone takes CUDA's losses apart

Eager, under torch.autocast in bfloat16. The device and CUDA take turns in processes of their own, from the same weights
and batch. The losses of all steps are compared. A ratio is the median of the steps' ratios, with the upper end of its
95 % interval.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

from _results import RESULTS, results_of, write
from _step_process import Step, StepProcess, parser_of, ratio_of, serve_or_run, step_process

os.environ.setdefault("OUTBOARD_FALLBACK", "silent")  # calls on the CPU are counted
os.environ.setdefault("USE_TF", "0")

import torch
from _models import MODELS, make_model, named_models
from _plans import count_plans

import torch_outboard
from torch_outboard.kernels import plan_statistics

STEPS = 50
WARMUP_STEPS = 3
# By which the losses of a step may differ: products of bfloat16 are summed in another
# order, which training carries on.
TOLERANCE = 5e-2


class Training:
    """A model on a device, with its optimizer and its batch."""

    def __init__(self, device: torch.device, name: str, is_tiny: bool, is_perturbed: bool) -> None:
        model, batch, self.loss = make_model(name, is_tiny)
        if is_perturbed:
            _perturb(model)
        self.device = device
        self.model = model.to(device)
        self.batch = {key: tensor.to(device) for key, tensor in batch.items()}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self) -> Step:
        self._wait()
        begin = time.perf_counter()
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.loss(self.model, self.batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        queued = time.perf_counter()
        self._wait()
        end = time.perf_counter()
        return {
            "loss": loss.item(),
            "host_ms": (queued - begin) * 1e3,
            "step_ms": (end - begin) * 1e3,
            "fallback": self._calls_on_the_cpu() if self._is_ours() else {},
            "plans": plan_statistics(),
            "generated": sum(row.calls for row in torch_outboard.coverage() if row.provider == "generated"),
        }

    def _calls_on_the_cpu(self) -> dict[str, int]:
        calls: dict[str, int] = {}
        for row in torch_outboard.coverage():
            if row.provider == "fallback":
                calls[row.op] = calls.get(row.op, 0) + row.calls
        return calls

    def _is_ours(self) -> bool:
        return self.device.type not in ("cuda", "cpu")

    def _wait(self) -> None:
        if self.device.type != "cpu":
            torch.get_device_module(self.device).synchronize()


def _perturb(model: torch.nn.Module) -> None:
    """Round half of the weights up by one unit in the last place."""
    with torch.no_grad():
        for weight in model.parameters():
            up = torch.nextafter(weight, torch.full_like(weight, torch.inf))
            weight.copy_(torch.where(torch.rand_like(weight) < 0.5, up, weight))


def measure(ours: StepProcess, theirs: StepProcess, count: int) -> dict[str, Any]:
    steps = [(ours.step(), theirs.step()) for _ in range(count)]
    timed = steps[WARMUP_STEPS:]
    ratio, high = ratio_of([(step["step_ms"], cuda["step_ms"]) for step, cuda in timed])
    return {
        "ratio": ratio,
        "ratio_high": high,
        "step_ms": statistics.median(step["step_ms"] for step, _ in timed),
        "cuda_ms": statistics.median(cuda["step_ms"] for _, cuda in timed),
        "first_s": steps[0][0]["step_ms"] / 1e3,
        "cuda_first_s": steps[0][1]["step_ms"] / 1e3,
        "host_ms": statistics.median(step["host_ms"] for step, _ in timed),
        "cuda_host_ms": statistics.median(cuda["host_ms"] for _, cuda in timed),
        "fallback": steps[-1][0]["fallback"],
        "loss_difference": max(abs(step["loss"] - cuda["loss"]) / abs(cuda["loss"]) for step, cuda in steps),
    }


def run(options: argparse.Namespace) -> int:
    path = options.json or results_of(options.driver) / f"models-{options.driver}.json"
    figures: dict[str, Any] = {"about": {}, "models": {}}
    if options.only and path.exists():
        figures = json.loads(path.read_text(encoding="utf-8"))
    wrong = []
    print("| model | ratio | at most | step, ms | CUDA, ms | host, ms | CUDA, ms | first, s | CUDA, s | losses |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name in options.only or MODELS:
        words = ["--serve", name, *(["--tiny"] if options.tiny else [])]
        nudged = ["--nudged"] if options.nudged else []
        with (
            step_process(__file__, "--driver", options.driver, *words, *nudged) as ours,
            step_process(__file__, "--driver", options.against, *words) as theirs,
        ):
            row = measure(ours, theirs, options.steps)
            figures["about"] = ours.found
        figures["models"][name] = row
        keys = ("step_ms", "cuda_ms", "host_ms", "cuda_host_ms", "first_s", "cuda_first_s")
        shown = [f"{row['ratio']:.3f} | {row['ratio_high']:.3f}", *(f"{row[key]:.2f}" for key in keys)]
        print(f"| {name} | {' | '.join(shown)} | {row['loss_difference']:.1e} |", flush=True)
        write(path, figures)
        if row["fallback"]:
            print(f"\non the CPU: {row['fallback']}\n", flush=True)
        if not row["loss_difference"] <= TOLERANCE:
            wrong.append(name)
    ratios = [row["ratio"] for row in figures["models"].values()]
    print(f"\nmedian {statistics.median(ratios):.3f}, largest {max(ratios):.3f}")
    if wrong:
        print(f"losses differ by more than {TOLERANCE}: {', '.join(wrong)}")
    return 1 if wrong else 0


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", metavar="MODEL,...", type=named_models)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--plans", action="store_true", help="count the plans of tiny models' steps; needs no GPU")
    parser.add_argument("--nudged", action="store_true", help="change half of the driver's weights by their last bit")
    options = parser.parse_args()
    if options.plans:
        figures = count_plans(__file__, options.driver, options.only or MODELS)
        write(options.json or RESULTS / f"plans-{options.driver.rpartition(':')[2]}.json", {"models": figures})
        return 0
    return serve_or_run(options, lambda device: Training(device, options.serve, options.tiny, options.nudged).step, run)


if __name__ == "__main__":
    sys.exit(main())
