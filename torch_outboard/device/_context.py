# SPDX-License-Identifier: BSD-3-Clause
"""State shared by the parts of torch.<name>. A process has one device type, so module-level state suffices."""

from __future__ import annotations

from typing import NoReturn

import torch

from torch_outboard._errors import NotSupportedError

name: str = ""

# Whether the user has requested the device (set_device, init). Opening a device counts too.
is_initialized: bool = False


def set_name(device_name: str) -> None:
    """Set the device's name, once, before any part is used."""
    global name
    name = device_name


def mark_initialized() -> None:
    """Record that the device is in use, without opening anything."""
    global is_initialized
    is_initialized = True


def not_supported(function: str, why: str) -> NoReturn:
    """Raise NotSupportedError for a function that torch.<name> lacks."""
    raise NotSupportedError(f"torch.{name}.{function} is not supported: {why}")


def device_index(device: torch.device | int | str | None, *, is_optional: bool = True) -> int:
    """Return the index of a device argument; None or a device without an index means the current device.

    A device of another type raises ValueError. The core checks that the device exists.
    """
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != name:
            raise ValueError(f"expected a {name} device, got {device}")
        if device.index is not None:
            return device.index
    elif device is not None:
        raise TypeError(f"a device must be an int, a str or a torch.device, not {type(device).__name__}")
    if not is_optional:
        raise ValueError(f"expected a device with an index, got {device}")
    return torch.accelerator.current_device_index()
