# SPDX-License-Identifier: BSD-3-Clause
"""All versions of torch that are served: how many parts Inductor makes of a reduction with few results."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from torch_outboard._compat.source import mentions

__all__ = ["needs_split_reductions", "split_reductions"]


def needs_split_reductions() -> bool:
    """Whether the number of parts comes from a GPU's multiprocessors and warps, whatever the device is."""
    from torch._inductor.choices import InductorChoices

    return mentions(InductorChoices.reduction_split_factor, "multi_processor_count")


def split_reductions(device: str, parts: Callable[[torch.device, int, int, bool], int]) -> None:
    """Makes reductions for a type of devices have the number of parts that `parts` gives.

    It is given the device, elements of a row, rows, and whether the elements of a row lie beside each other.

    Inductor computes it from the warps and threads of a CUDA GPU; a device that has none of them gets a division by
    zero. The choices are one object for all devices, which a user may have replaced, so it is asked for others.
    """
    from torch._inductor.choices import InductorChoices

    of_torch = InductorChoices.reduction_split_factor

    # A static method until torch 2.14, a method since.
    is_static = isinstance(inspect.getattr_static(InductorChoices, "reduction_split_factor"), staticmethod)

    @functools.wraps(of_torch)
    def reduction_split_factor(*given: Any, **named: Any) -> int:
        call = inspect.signature(of_torch).bind(*given, **named).arguments
        if call["device"].type == device:
            return parts(call["device"], call["reduction_numel_hint"], call["numel_hint"], call["inner_reduction"])
        return of_torch(*given, **named)

    changed = staticmethod(reduction_split_factor) if is_static else reduction_split_factor
    InductorChoices.reduction_split_factor = changed  # type: ignore[method-assign]
