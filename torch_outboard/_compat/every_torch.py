# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.15."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

__all__ = ["name_dlpack_device", "needs_dlpack_device"]


def needs_dlpack_device() -> bool:
    """Whether Tensor.__dlpack_device__ knows the device by its first name only, "privateuse1"."""
    method = inspect.unwrap(torch.Tensor.__dlpack_device__)
    return '"privateuse1"' in inspect.getsource(method)


def name_dlpack_device(device: str) -> None:
    """Makes Tensor.__dlpack_device__ give kDLExtDev for the attached device.

    It compares the device's type with "privateuse1", which a device that has a name never has (pytorch#195815); what
    asks for the protocol, torch.from_dlpack first of all, then meets ValueError. The exchange itself is whole.
    """
    if not needs_dlpack_device():
        return
    of_torch = torch.Tensor.__dlpack_device__

    @functools.wraps(of_torch)
    def method(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type != device or torch.overrides.has_torch_function_unary(self):
            return of_torch(self)
        return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index

    torch.Tensor.__dlpack_device__ = method  # type: ignore[method-assign]
