# SPDX-License-Identifier: BSD-3-Clause
"""By which decompositions an operator's call is traced: Inductor's, but where eager code means another value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table

from torch_outboard.kernels import orders

__all__ = ["decompositions"]


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Gives the table for `make_fx`."""
    aten = torch.ops.aten
    return {
        **select_decomp_table(),
        **orders.decompositions(),
        aten._index_put_impl.default: lambda self, indices, values, accumulate=False, unsafe=False: (
            aten.index_put.default(self, indices, values, accumulate)
        ),
        aten.div.Tensor_mode: _divide,
        aten.isin.Tensor_Tensor: _isin,
    }


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


def _isin(
    elements: torch.Tensor, test_elements: torch.Tensor, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    """Compares each with each, in one kernel.

    Inductor's sorts many, and tells how many are many by a power of their number, for which a plan has no formula.
    """
    rank = test_elements.dim()
    found = elements.reshape(*elements.shape, *[1] * rank) == test_elements
    if rank > 0:
        found = found.any(tuple(range(-rank, 0)))
    return found.logical_not() if invert else found
