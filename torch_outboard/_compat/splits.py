# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.14: the number of parts into which Inductor splits a reduction with few results.

Torch 2.15 accepts registered classes of choices, and this module registers one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from torch_outboard._compat.source import mentions

__all__ = ["needs_split_reductions", "split_reductions"]


def needs_split_reductions() -> bool:
    """Return True if the number of parts depends on a GPU's multiprocessors and warps, whatever the device."""
    from torch._inductor import choices

    is_open = hasattr(choices, "register_inductor_choices")
    return not is_open and mentions(choices.InductorChoices.reduction_split_factor, "multi_processor_count")


def split_reductions(device: str, parts: Callable[[torch.device, int, int, bool], int]) -> None:
    """Make Inductor use `parts` for the number of parts of reductions on a device type.

    `parts` takes the device, the number of elements per row, the number of rows, and whether rows are contiguous.

    Inductor computes the number from the warps and threads of a CUDA GPU, and divides by zero for a device without
    them. In torch 2.15, each device can register its choices. Earlier versions have one object with choices for all
    devices, which a user may have replaced, so other devices still use that object.
    """
    from torch._inductor import choices

    if not needs_split_reductions():
        _register_choices(choices, device, parts)
        return
    InductorChoices = choices.InductorChoices  # noqa: N806 - the name of the class
    of_torch = InductorChoices.reduction_split_factor

    # A static method up to torch 2.14, an instance method since.
    is_static = isinstance(inspect.getattr_static(InductorChoices, "reduction_split_factor"), staticmethod)

    @functools.wraps(of_torch)
    def reduction_split_factor(*args: Any, **named: Any) -> int:
        call = inspect.signature(of_torch).bind(*args, **named).arguments
        if call["device"].type == device:
            return parts(call["device"], call["reduction_numel_hint"], call["numel_hint"], call["inner_reduction"])
        return of_torch(*args, **named)

    changed = staticmethod(reduction_split_factor) if is_static else reduction_split_factor
    InductorChoices.reduction_split_factor = changed  # type: ignore[method-assign]


def _register_choices(choices: Any, ours: str, parts: Callable[[torch.device, int, int, bool], int]) -> None:
    class Choices(choices.InductorChoices):  # type: ignore[misc]
        def reduction_split_factor(
            self, device: torch.device, reduction_numel_hint: int, numel_hint: int, inner_reduction: bool
        ) -> int:
            hints = (device, reduction_numel_hint, numel_hint, inner_reduction)
            return parts(*hints) if device.type == ours else int(super().reduction_split_factor(*hints))

        def uuid(self) -> tuple[str, str]:
            """Return this class's part of the keys of torch's caches; the compiler's own code has another."""
            return "torch_outboard", ours

    choices.register_inductor_choices("torch_outboard", Choices)
