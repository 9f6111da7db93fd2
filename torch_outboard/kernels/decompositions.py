# SPDX-License-Identifier: BSD-3-Clause
"""By which decompositions an operator's call is traced: Inductor's, but where eager code means another value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table

__all__ = ["decompositions"]


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Gives the table for `make_fx`."""
    return {**select_decomp_table(), torch.ops.aten.div.Tensor_mode: _divide}


def _divide(a: torch.Tensor, b: torch.Tensor, *, rounding_mode: str | None) -> Any:
    """Divides floating point with rounding down by the rest of the division, as ATen's kernels do.

    Inductor's lowering is floor(a / b), which is one too much where the quotient is rounded up to a whole number.
    """
    common = torch.result_type(a, b)
    if rounding_mode != "floor" or not common.is_floating_point:
        return NotImplemented
    wide = torch.float64 if common == torch.float64 else torch.float32
    a, b = a.to(wide), b.to(wide)
    rest = torch.fmod(a, b)
    quotient = (a - rest) / b
    quotient = torch.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    below = quotient.floor()
    whole = torch.where(quotient - below > 0.5, below + 1, below)
    plain = a / b
    signed = torch.where(quotient == 0, torch.copysign(torch.zeros_like(plain), plain), whole)
    return torch.where(b == 0, plain, signed).to(common)
