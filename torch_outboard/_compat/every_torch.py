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
    "hint_at_cpu",
    "name_dlpack_device",
    "needs_dlpack_device",
    "needs_hint_at_cpu",
    "needs_settle_before_settings",
    "settle_before_settings",
]

# What sets something of the process that the CPU's kernels read while they run. A torch may lack some.
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

# Meta kernels that refuse arguments by the device's type, where the device takes more than the CPU: histc counts
# integers (csrc/ops/own/composites.cpp).
_BEYOND_CPU = frozenset({"meta_histc"})


def needs_dlpack_device() -> bool:
    """Whether Tensor.__dlpack_device__ knows the device by its first name only, "privateuse1"."""
    return mentions(torch.Tensor.__dlpack_device__, "privateuse1")


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

    return mentions(_meta_registrations.device_hint, "cuda")


def hint_at_cpu(device: str, infers_shapes: Callable[[], bool]) -> None:
    """Makes torch's meta kernels give the shapes and strides that the CPU's kernels give, which run for the device.

    Some of them (FFTs, linear algebra, bags of embeddings) ask for the device's type. They are told the CPU's for fake
    tensors of the device, where torch gives its name, and while `infers_shapes()`, where meta tensors stand for
    tensors of the device and torch takes them for CUDA's. A driver can't be asked: meta kernels belong to operators.
    Upstream: https://github.com/pytorch/pytorch/issues/189137.

    A meta kernel that refuses what the CPU's kernel lacks gets the device's own name, if the device has an
    implementation of its own (`_BEYOND_CPU`).
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
        if hint != device:
            return hint
        return device if sys._getframe(1).f_code.co_name in _BEYOND_CPU else "cpu"

    _meta_registrations.device_hint = device_hint


def needs_settle_before_settings() -> bool:
    """Whether the process's settings are plain variables, whose change nobody is told of."""
    return any(
        inspect.isbuiltin(inspect.unwrap(getattr(torch._C, name))) for name in SETTERS if hasattr(torch._C, name)
    )


def settle_before_settings(drain: Callable[[], None]) -> None:
    """Makes the setters of what CPU kernels read while they run wait for the calls that are queued, by `drain()`.

    A call that was queued under one default dtype, determinism or precision must not run under the next. On CUDA these
    are read when a call is made; the CPU's kernels, which the host provider queues, read variables of the process that
    cannot be set for one thread, and torch tells nobody when they change.
    """
    if not needs_settle_before_settings():
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
