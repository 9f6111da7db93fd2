# SPDX-License-Identifier: BSD-3-Clause
"""Compile generated kernels as CUDA C++ with NVRTC, on a fake CUDA whose kernels do nothing.

    python cuda_texts.py LIBCUDA SHARE    # a SHARE-th of torch's operator database, attention, and lists

Prints the entries that contradict the list of missing kernels, with the compiler's messages, and then the number of
entries with kernels.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

os.environ["OUTBOARD_FALLBACK"] = "error"
os.environ["OUTBOARD_KERNEL_CACHE_DIR"] = os.environ["OUTBOARD_KERNEL_PACKS"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests"))

import torch
from kernels.not_generated import NOT_GENERATED
from torch.nn import functional

import torch_outboard
from torch_outboard.testing.database.entries import entries_of, run_entry


def state_of(info: object, device: torch.device) -> tuple[str, str]:
    try:
        return run_entry(info, torch.float32, 1, device)
    except Exception as error:  # the memory's old content was not a valid index
        return "wrong", str(error)


def attend(device: torch.device) -> None:
    """Call attention, with gradients, in variants that each have their own kernel text."""
    for dtype, head, mask, options in (
        (torch.float32, 256, None, {"is_causal": True}),
        (torch.bfloat16, 72, torch.randn(70, 1, device=device), {"enable_gqa": True}),
    ):
        heads = (
            [(2, 4, 70, head), (2, 2, 90, head), (2, 2, 90, head)]
            if options.get("enable_gqa")
            else [(1, 2, 80, head)] * 3
        )
        operands = [torch.randn(size, dtype=dtype, device=device, requires_grad=True) for size in heads]
        functional.scaled_dot_product_attention(*operands, attn_mask=mask, **options).sum().backward()
    rows = [row for row in torch_outboard.coverage() if "attention" in row.op]
    if len(rows) != 2 or any(row.provider != "generated" for row in rows):
        print(f"attention has no kernels: {rows}")


def reduce_lists(device: torch.device) -> None:
    torch_outboard.reset_coverage()
    for dtype in (torch.float32, torch.float16):
        x = [torch.ones(5, dtype=dtype, device=device), torch.ones(3000, dtype=dtype, device=device)]
        torch._foreach_norm(x), torch._foreach_norm(x, 1, torch.float32), torch._foreach_norm(x, float("inf"))
        torch._foreach_max(x), torch._foreach_pow(x, [0.5, 3.0])
    torch._foreach_max([torch.ones(3, dtype=torch.bool, device=device), torch.ones(2, dtype=torch.bool, device=device)])
    rows = [row for row in torch_outboard.coverage() if "foreach" in row.op]
    if sum(row.calls for row in rows) != 11 or any(row.provider != "generated" for row in rows):
        print(f"lists have no kernels: {rows}")


def main() -> None:
    library, share = sys.argv[1], int(sys.argv[2])
    torch_outboard.attach("nv", library=library)
    warnings.simplefilter("ignore")
    device, count = torch.device("nv", 0), 0
    for info in entries_of(torch.float32, share):
        name = info.full_name
        state, reason = state_of(info, device)
        count += state != "refused"
        if "does not compile" in reason or (state == "refused") != (name in NOT_GENERATED):
            print(f"{name} is {state}: {reason}")
    attend(device)
    reduce_lists(device)
    print(f"{count} entries have kernels")


if __name__ == "__main__":
    main()
