# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in Triton as programs have them. Triton reads their source, so they are in a file."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, y, n, factor, adds_one, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n) * factor
    if adds_one:
        value = value + 1
    tl.store(y + place, value, mask=place < n)


@triton.autotune(
    [triton.Config({"BLOCK": block}, num_warps=warps) for block in (16, 64) for warps in (1, 2)], key=["n"]
)
@triton.heuristics({"IS_WHOLE": lambda meta: meta["n"] % meta["BLOCK"] == 0})
@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr, IS_WHOLE: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if IS_WHOLE:
        tl.store(y + place, tl.load(x + place))
    else:
        tl.store(y + place, tl.load(x + place, mask=place < n), mask=place < n)


# Named as Inductor names what kernels read.
@triton.autotune([triton.Config({"BLOCK": block}) for block in (16, 64)], key=["n"], restore_value=["in_ptr0"])
@triton.jit
def accumulate(in_ptr0, x, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(in_ptr0 + place, mask=place < n) + tl.load(x + place, mask=place < n)
    tl.store(in_ptr0 + place, value, mask=place < n)


@triton.jit
def numbers(pair, out, absent, small, large):
    total = tl.load(pair[0]) + tl.load(pair[1]) + small
    if absent is not None:
        total += tl.load(absent)
    tl.store(out, total + (large >> 32).to(tl.float32))


def blocks(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def scaled(x: torch.Tensor, factor: float, adds_one: bool = False) -> torch.Tensor:
    y = torch.empty_like(x)
    scale[blocks(x.numel())](x, y, x.numel(), factor, adds_one, BLOCK=32)
    return y


def accumulated(x: torch.Tensor) -> torch.Tensor:
    """Return 2 * (sin(2.5 x + 1) + x), by two kernels here and those of Inductor."""
    z = scaled(x, 2.5, True).sin()
    accumulate[blocks(x.numel())](z, x, x.numel())
    return z * 2


@torch.library.triton_op("triton_kernels::thrice", mutates_args={})
def thrice(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.library.wrap_triton(scale)[(triton.cdiv(x.numel(), 32),)](x, y, x.numel(), 3.0, False, BLOCK=32)
    return y
