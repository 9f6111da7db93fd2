# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11 to 2.15."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from torch_outboard._compat.source import mentions

__all__ = [
    "SETTERS",
    "hint_cpu",
    "name_dlpack_device",
    "needs_dlpack_device",
    "needs_hint_cpu",
    "needs_wait_before_setting_change",
    "wait_before_setting_change",
]

# Setters of process settings that the CPU's kernels read while they run. Some versions of torch
# lack some of these setters.
SETTERS = (
    "_set_default_dtype",
    "_set_default_tensor_type",
    "_set_deterministic_algorithms",
    "_set_deterministic_fill_uninitialized_memory",
    "_set_float32_matmul_precision",
    "_set_fp32_precision_setter",
    "_set_mkldnn_deterministic",
    "_set_mkldnn_enabled",
    "_set_nnpack_enabled",
    "_set_onednn_allow_tf32",
    "_set_qengine",
)

# Meta kernels that refuse arguments because of the device's type, although the device supports more
# than the CPU: histc counts integers (csrc/ops/own/composites.cpp).
_BEYOND_CPU = frozenset({"meta_histc"})


def needs_dlpack_device() -> bool:
    """Return True if Tensor.__dlpack_device__ recognizes the device only by its original name, "privateuse1"."""
    return mentions(torch.Tensor.__dlpack_device__, "privateuse1")


def name_dlpack_device(device: str) -> None:
    """Make Tensor.__dlpack_device__ return kDLExtDev for the attached device.

    The method compares the device's type with "privateuse1", which never matches a renamed device (pytorch#195815).
    Users of the protocol, above all torch.from_dlpack, then get a ValueError, although the exchange itself works.
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


def needs_hint_cpu() -> bool:
    """Return True if torch's meta kernels treat tensors of an unknown device like CUDA's."""
    from torch import _meta_registrations

    return mentions(_meta_registrations.device_hint, "cuda")


def hint_cpu(device: str, infers_shapes: Callable[[], bool]) -> None:
    """Make torch's meta kernels return the shapes and strides of the CPU's kernels, which run for the device.

    Some meta kernels (FFTs, linear algebra, embedding bags) read the device's type. This patch passes the CPU's type in
    two cases. For fake tensors of the device, torch would pass the device's name. For meta tensors while
    `infers_shapes()` is true, which represent the device's tensors, torch would treat them like CUDA's. There is no
    hook for a driver, because meta kernels belong to operators. Upstream:
    https://github.com/pytorch/pytorch/issues/189137.

    If the device implements an operator with fewer restrictions than the CPU's kernel, the meta kernel receives the
    device's own name (`_BEYOND_CPU`).
    """
    if not needs_hint_cpu():
        return
    from torch import _meta_registrations

    of_torch = _meta_registrations.device_hint

    @functools.wraps(of_torch)
    def device_hint(tensor: Any) -> str:
        if infers_shapes():
            return "cpu"
        hint: str = of_torch(tensor)
        if hint != device:
            return hint
        return device if sys._getframe(1).f_code.co_name in _BEYOND_CPU else "cpu"

    _meta_registrations.device_hint = device_hint


def needs_wait_before_setting_change() -> bool:
    """Return True if the process's settings are plain variables that notify nobody of changes."""
    return any(
        inspect.isbuiltin(inspect.unwrap(getattr(torch._C, name))) for name in SETTERS if hasattr(torch._C, name)
    )


def wait_before_setting_change(drain: Callable[[], None]) -> None:
    """Make setters of settings that CPU kernels read wait for queued calls, by calling `drain()`.

    A call queued under one default dtype, determinism or precision must not run under the next. On CUDA, a call reads
    these settings when it is made. The host provider queues CPU kernels, which read the process's variables when they
    run. These variables cannot be set per thread, and torch does not report changes.
    """
    if not needs_wait_before_setting_change():
        return
    for name in SETTERS:
        setter = getattr(torch._C, name, None)
        if setter is not None:
            setattr(torch._C, name, _settled(setter, drain))


def _settled(setter: Callable[..., Any], drain: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(setter)
    def settled(*args: Any, **kwargs: Any) -> Any:
        drain()
        return setter(*args, **kwargs)

    return settled
