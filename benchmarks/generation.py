# SPDX-License-Identifier: BSD-3-Clause
"""Measure how fast GPT-2 small with random weights generates 200 tokens on a GPU, against torch's own CUDA device.

    benchmarks/generation.py                                  # nv against CUDA
    benchmarks/generation.py --driver sim --against cpu --tiny    # a try without a GPU

"eager" is a loop of calls, "compiled" the same loop with each call's model under torch.compile. Both have a cache of
fixed size for keys and values, and bfloat16. The device and CUDA take turns in processes of their own, from the same
weights and prompt, and their first logits must agree. A figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

from _results import results_of, write
from _step_process import Step, parser_of, ratio_of, serve_or_run, step_process

os.environ.setdefault("OUTBOARD_FALLBACK", "error")
os.environ.setdefault("USE_TF", "0")

import torch
import transformers

PROMPT, TOKENS = 64, 200
WARMUP_STEPS = 2
TOLERANCE = 5e-2  # of the first logits, relative to the largest
WAYS = ("eager", "compiled")


class Generation:
    """A model on a device, and a prompt that it continues by the most probable tokens."""

    def __init__(self, device: torch.device, way: str, is_tiny: bool) -> None:
        torch.manual_seed(1)
        sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 512} if is_tiny else {}
        self.config = transformers.GPT2Config(**sizes)
        self.tokens = 8 if is_tiny else TOKENS
        self.model = transformers.GPT2LMHeadModel(self.config).eval().bfloat16().to(device)
        self.prompt = torch.randint(self.config.vocab_size, (1, PROMPT)).to(device)
        self.places = torch.arange(PROMPT + self.tokens, device=device)
        self.device = device
        self.call = torch.compile(self._call, dynamic=False) if way == "compiled" else self._call

    def _call(self, token: torch.Tensor, places: torch.Tensor, cache: object) -> torch.Tensor:
        """Return the logits of the next token."""
        out = self.model(token, past_key_values=cache, cache_position=places, use_cache=True, logits_to_keep=1)
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    @torch.no_grad()
    def step(self) -> Step:
        self._wait()
        begin = time.perf_counter()
        cache = transformers.StaticCache(config=self.config, max_cache_len=PROMPT + self.tokens)
        logits = first = self._call(self.prompt, self.places[:PROMPT], cache)
        tokens_seen = []
        for number in range(self.tokens):
            tokens_seen.append(logits.argmax(-1, keepdim=True))
            place = PROMPT + number
            logits = self.call(tokens_seen[-1], self.places[place : place + 1], cache)
        tokens = torch.cat(tokens_seen, 1)
        self._wait()
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "tokens": tokens[0].tolist(), "first": first[0, :64].float().tolist()}

    def _wait(self) -> None:
        if self.device.type != "cpu":
            torch.get_device_module(self.device).synchronize()


def measure(options: argparse.Namespace, way: str) -> dict[str, object]:
    words = ["--serve", way, *(["--tiny"] if options.tiny else [])]
    sides = [step_process(__file__, "--driver", driver, *words) for driver in (options.driver, options.against)]
    with sides[0] as ours, sides[1] as theirs:
        steps = [(ours.step(), theirs.step()) for _ in range(WARMUP_STEPS + options.rounds)]
        about = ours.found
    ours_first, theirs_first = steps[0]
    largest = max(map(abs, theirs_first["first"]))
    difference = max(abs(a - b) for a, b in zip(ours_first["first"], theirs_first["first"], strict=True)) / largest
    timed = steps[WARMUP_STEPS:]
    ratio, high = ratio_of([(a["seconds"], b["seconds"]) for a, b in timed])
    count = len(ours_first["tokens"])
    return {
        "about": about,
        "ratio": ratio,
        "ratio_high": high,
        "tokens_per_second": count / statistics.median(a["seconds"] for a, _ in timed),
        "cuda_tokens_per_second": count / statistics.median(b["seconds"] for _, b in timed),
        "first_s": ours_first["seconds"],
        "cuda_first_s": theirs_first["seconds"],
        "logits_difference": difference,
        "equal_tokens": sum(a == b for a, b in zip(ours_first["tokens"], theirs_first["tokens"], strict=True)) / count,
    }


def run(options: argparse.Namespace) -> int:
    print("| way | ratio of times | at most | tokens/s | CUDA, tokens/s | first, s | CUDA, s | logits | equal tokens |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    figures: dict[str, object] = {}
    is_good = True
    for way in options.ways.split(","):
        row = measure(options, way)
        figures["about"] = row.pop("about")
        figures[way] = row
        keys = ("ratio", "ratio_high", "tokens_per_second", "cuda_tokens_per_second", "first_s", "cuda_first_s")
        print(
            f"| {way} | {' | '.join(f'{row[key]:.2f}' for key in keys)} | {row['logits_difference']:.1e} | "
            f"{row['equal_tokens']:.2f} |",
            flush=True,
        )
        is_good &= bool(row["logits_difference"] <= TOLERANCE)  # type: ignore[operator]
    write(options.json or results_of(options.driver) / f"generation-{options.driver}.json", figures)
    if not is_good:
        print(f"the first logits differ by more than {TOLERANCE}")
    return 0 if is_good else 1


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--ways", default=",".join(WAYS), metavar="WAY,...")
    options = parser.parse_args()
    return serve_or_run(options, lambda device: Generation(device, options.serve, options.tiny).step, run)


if __name__ == "__main__":
    sys.exit(main())
