# SPDX-License-Identifier: BSD-3-Clause
"""torch.<name>.amp: automatic mixed precision with the device filled in. torch.amp does the work."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from torch_outboard import _C
from torch_outboard.device import _context, devices

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "get_amp_supported_dtype"]


class _NoDtypes(list[torch.dtype]):
    """An empty list of dtypes with a reason: torch.autocast searches it when enabled, and then disables itself."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why

    def __contains__(self, dtype: object) -> bool:
        # Skip the frames of autocast.__init__ and its caller.
        warnings.warn(
            f"{self.why}: autocast is disabled, and operators run in the dtypes of their inputs.", stacklevel=3
        )
        return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that torch.autocast may use on the current device, from the driver's properties.

    The list is empty if the driver has not opted into autocast or there is no device. torch.autocast then warns, with
    the reason, and disables itself.
    """
    if not _C.has_autocast():
        return _NoDtypes(
            f'The driver {_context.name!r} has no autocast policies (its `autocast` is None; set it to "default")'
        )
    if not devices.is_available():
        return _NoDtypes(f"There is no {_context.name} device")
    supported = devices.get_device_properties().dtypes
    return [dtype for dtype in (torch.bfloat16, torch.float16) if dtype in supported]


def autocast(
    enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = None
) -> torch.amp.autocast:
    """Return torch.autocast for the device, a context manager and a decorator.

    Without a dtype, the thread's default applies, or a dtype that the device supports if it lacks the default.
    """
    name = _context.name
    if dtype is None:
        dtype = torch.get_autocast_dtype(name)
        supported = get_amp_supported_dtype()
        if len(supported) == 1:
            dtype = supported[0]
    return torch.amp.autocast(name, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


def custom_fwd(fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None) -> Any:
    """Return torch.amp.custom_fwd for the device."""
    return torch.amp.custom_fwd(fwd, device_type=_context.name, cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any] | None = None) -> Any:
    """Return torch.amp.custom_bwd for the device."""
    return torch.amp.custom_bwd(bwd, device_type=_context.name)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for the device.

    A scale that is not positive raises ValueError. torch.amp.GradScaler accepts one, and then skips every step.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled:
            _check_scale("init_scale", init_scale)
        super().__init__(_context.name, init_scale, growth_factor, backoff_factor, growth_interval, enabled)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Update the scale as torch.amp.GradScaler does. A scale in a tensor is not checked: reading it would wait."""
        if self.is_enabled() and isinstance(new_scale, int | float):
            _check_scale("new_scale", new_scale)
        super().update(new_scale)


def _check_scale(argument: str, scale: float) -> None:
    if not scale > 0:
        raise ValueError(f"{argument} must be positive, not {scale!r}, because gradients are divided by it")
