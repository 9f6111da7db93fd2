# SPDX-License-Identifier: BSD-3-Clause
"""Counts what the provider 'compiled' does with the operator database: right, wrong, refused and why.

    python -m tests.stress.compiled_provider --samples 1 --dtype float32 [--gradients] [--only REGEX] [--json FILE]

It attaches PoCL with its memory out of the host's reach, has nothing run on the CPU, poisons free memory, and compares
with the CPU within the bounds of torch's own tests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import warnings
from collections import Counter
from pathlib import Path

os.environ["OUTBOARD_FALLBACK"] = "error"
os.environ["OUTBOARD_KERNEL_CACHE_DIR"] = os.environ["OUTBOARD_KERNEL_PACKS"] = ""
os.environ["OUTBOARD_PROVIDERS"] = "native,compiled"

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from kernels.entries import run_entry
from torch.testing._internal.common_methods_invocations import op_db

import torch_outboard


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
    parser.add_argument("--gradients", action="store_true", help="of the results, instead of the results")
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    given = parser.parse_args()
    torch_outboard.attach("opencl", host_access=False)
    warnings.simplefilter("ignore")
    device = torch.device("ocl", 0)
    dtype = getattr(torch, given.dtype)
    rows = {}
    for info in op_db:
        is_asked = dtype in info.supported_dtypes("cpu") and (info.supports_autograd or not given.gradients)
        if is_asked and re.search(given.only, info.full_name):
            found = run_entry(info, dtype, given.samples, device, has_gradients=given.gradients)
            state, reason = rows[info.full_name] = found
            if state not in ("right", "ran"):
                print(f"{state:8} {info.full_name}: {_reason(reason)}", flush=True)
    counts = Counter(state for state, _ in rows.values())
    print(
        dict(counts),
        f"of {len(rows)};",
        f"right {counts['right'] / max(1, len(rows) - counts['ran'] - counts['skipped']):.1%}",
    )
    for reason, count in Counter(_reason(text) for state, text in rows.values() if state == "refused").most_common(25):
        print(f"{count:4} {reason}")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
