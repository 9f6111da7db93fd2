# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.15."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["hint_at_cpu", "name_dlpack_device", "needs_dlpack_device", "needs_hint_at_cpu"]


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


def needs_hint_at_cpu() -> bool:
    """Whether torch's meta kernels take tensors of an unknown device for CUDA's."""
    from torch import _meta_registrations

    return '"cuda"' in inspect.getsource(inspect.unwrap(_meta_registrations.device_hint))


def hint_at_cpu(device: str, infers_shapes: Callable[[], bool]) -> None:
    """Makes torch's meta kernels give the shapes and strides that the CPU's kernels give, which run for the device.

    Some of them (FFTs, linear algebra, bags of embeddings) ask for the device's type. They are told the CPU's for fake
    tensors of the device, where torch gives its name, and while `infers_shapes()`, where meta tensors stand for
    tensors of the device and torch takes them for CUDA's. A driver can't be asked: meta kernels belong to operators.
    Upstream: https://github.com/pytorch/pytorch/issues/189137.
    """
    if not needs_hint_at_cpu():
        return
    from torch import _meta_registrations

    of_torch = _meta_registrations.device_hint

    @functools.wraps(of_torch)
    def device_hint(tensor: Any) -> str:
        if infers_shapes():
            return "cpu"
        hint: str = of_torch(tensor)
        return "cpu" if hint == device else hint

    _meta_registrations.device_hint = device_hint
