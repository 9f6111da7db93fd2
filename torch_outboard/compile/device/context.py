# SPDX-License-Identifier: BSD-3-Clause
"""Dynamo's tracing of torch.<name>.device."""

from __future__ import annotations

from typing import Any

from torch._dynamo.variables import ctx_manager
from torch._dynamo.variables.ctx_manager import GenericDeviceVariable

from torch_outboard import _C
from torch_outboard.device import devices
from torch_outboard.device._context import device_index

__all__ = ["register_context"]


def _index(device: Any, optional: bool = False) -> int:
    return -1 if device is None else device_index(device)


class _DeviceVariable(GenericDeviceVariable):
    """Dynamo's variable for torch.<name>.device."""

    _exchange_fn = staticmethod(devices._exchange_device)
    _maybe_exchange_fn = staticmethod(devices._maybe_exchange_device)
    _get_device_index_fn = staticmethod(_index)

    def module_name(self) -> str:
        return f"torch.{_C.driver_name()}"

    def python_type(self) -> type:
        return devices.device


def register_context() -> None:
    """Make Dynamo trace the context manager. Call it once."""
    ctx_manager.register_device_context_manager(devices.device, _DeviceVariable)
