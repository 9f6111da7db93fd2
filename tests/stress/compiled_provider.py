# SPDX-License-Identifier: BSD-3-Clause
"""Counts what the provider 'compiled' does with the operator database: right, wrong, refused and why.

    python -m tests.stress.compiled_provider --samples 1 --dtype float32 [--only REGEX] [--json FILE]

It attaches PoCL with its memory out of the host's reach, has nothing run on the CPU, poisons free memory, and compares
with the CPU within the bounds of torch's own tests.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import warnings
from collections import Counter
from typing import Any

os.environ["OUTBOARD_FALLBACK"] = "error"
os.environ["OUTBOARD_KERNEL_CACHE_DIR"] = ""
os.environ["OUTBOARD_PROVIDERS"] = "native,compiled"

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

import torch_outboard
from tests.operators.compare import TorchsBounds, value_difference
from tests.operators.lists import RANDOM, UNINITIALISED
from tests.operators.outcome import CPU, poison, seed
from tests.operators.samples import Call, all_samples_of
from torch_outboard import NotSupportedError


def run_entry(info: Any, dtype: torch.dtype, samples: int, device: torch.device) -> tuple[str, str]:
    """Gives what became of an entry's first samples, and why."""
    if info.full_name in RANDOM or info.full_name in UNINITIALISED:
        return "random", ""
    states: list[tuple[str, str]] = []
    for number, sample in enumerate(itertools.islice(all_samples_of(info, dtype, False), samples)):
        states.append(_run_sample(info, sample, number, device))
    order = ("wrong", "failed", "refused", "right", "skipped")
    return min(states, key=lambda state: order.index(state[0]), default=("skipped", "no sample"))


def _run_sample(info: Any, sample: Any, number: int, device: torch.device) -> tuple[str, str]:
    theirs = Call(info, sample, CPU)
    seed(number, CPU)
    try:
        expected = theirs.forward()
    except Exception as error:
        return "skipped", f"the CPU raises {type(error).__name__}"
    ours = Call(info, sample, device)
    poison(device)
    torch_outboard.reset_coverage()
    try:
        result = ours.forward()
        torch.accelerator.synchronize(device)
    except NotSupportedError as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    pairs = list(zip(tree_leaves(result), tree_leaves(expected), strict=True))
    pairs += list(zip(ours.inputs, theirs.inputs, strict=True))  # of operators that write
    for got, want in pairs:
        if isinstance(want, torch.Tensor):
            if got.shape != want.shape or got.dtype != want.dtype:
                return "wrong", f"{got.dtype} {tuple(got.shape)} for {want.dtype} {tuple(want.shape)}"
            difference = value_difference(got.detach().cpu(), want.detach(), TorchsBounds(info))
            if difference is not None:
                return "wrong", difference
        elif got != want and got == got:
            return "wrong", f"{got} for {want}"
    return "right", ",".join(sorted({row.provider for row in torch_outboard.coverage()}))


def _reason(text: str) -> str:
    found = re.search(r"operator (\S+) has .*?None was generated: (.*?)\. OUTBOARD_FALLBACK", text, re.DOTALL)
    if found:
        return f"{found[1]}: {found[2]}"
    found = re.search(r"operator (\S+) has no kernel", text)
    return f"{found[1]}: not asked" if found else text[:200]


def main() -> None:
    """Prints a line for each entry that isn't right, the counts, and the operators that most entries lack."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    given = parser.parse_args()
    torch_outboard.attach("opencl", host_access=False)
    warnings.simplefilter("ignore")
    device = torch.device("ocl", 0)
    dtype = getattr(torch, given.dtype)
    rows = {}
    for info in op_db:
        if dtype in info.supported_dtypes("cpu") and re.search(given.only, info.full_name):
            state, reason = rows[info.full_name] = run_entry(info, dtype, given.samples, device)
            if state not in ("right", "random"):
                print(f"{state:8} {info.full_name}: {_reason(reason)}", flush=True)
    counts = Counter(state for state, _ in rows.values())
    print(dict(counts), f"of {len(rows)};", f"right {counts['right'] / max(1, len(rows) - counts['random']):.1%}")
    for reason, count in Counter(_reason(text) for state, text in rows.values() if state == "refused").most_common(25):
        print(f"{count:4} {reason}")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
