# SPDX-License-Identifier: BSD-3-Clause
"""All supported versions of torch: the number of parts into which Inductor splits a reduction with few results."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from torch_outboard._compat.source import mentions

__all__ = ["needs_split_reductions", "split_reductions"]


def needs_split_reductions() -> bool:
    """Return True if the number of parts comes from a GPU's multiprocessors and warps, whatever the device is."""
    from torch._inductor.choices import InductorChoices

    return mentions(InductorChoices.reduction_split_factor, "multi_processor_count")


def split_reductions(device: str, parts: Callable[[torch.device, int, int, bool], int]) -> None:
    """Make `parts` return the number of parts of reductions for a device type.

    Its arguments are the device, the elements of a row, the rows, and whether the elements of a row are contiguous.

    Inductor computes the number from the warps and threads of a CUDA GPU. For a device without them, it divides by
    zero. The choices are one object for all devices, which a user may have replaced, so other devices still use that
    object.
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
