# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.15: printing tensors."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_outboard._compat.source import mentions

__all__ = ["needs_print_from_cpu", "print_from_cpu"]


def needs_print_from_cpu() -> bool:
    """Return True if torch prints tensors with operators on the device, except for a few named devices."""
    return mentions(torch._tensor_str._str_intern, "xla")


def print_from_cpu(device: str) -> None:
    """Make printing copy a device's tensor to the CPU once, as torch does for devices on its list.

    Otherwise, printing runs dozens of operators on the device. Each may be a fallback with two copies, and all count as
    the program's own calls. Devices cannot add themselves to the list in torch/_tensor_str.py.
    """
    if not needs_print_from_cpu():
        return
    of_torch = torch._tensor_str._tensor_str

    @functools.wraps(of_torch)
    def text(self: torch.Tensor, indent: int) -> Any:
        return of_torch(self.detach().cpu() if self.device.type == device else self, indent)  # type: ignore[no-untyped-call]

    torch._tensor_str._tensor_str = text
