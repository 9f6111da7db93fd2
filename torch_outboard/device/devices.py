# SPDX-License-Identifier: BSD-3-Clause
"""Devices of torch.<name>: counting and selecting them opens nothing."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torch_outboard import _C
from torch_outboard._properties import DeviceProperties
from torch_outboard.device import _context
from torch_outboard.device._context import device_index
from torch_outboard.device.random import default_generators

__all__ = [
    "can_device_access_peer",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_gencode_flags",
    "get_sync_debug_mode",
    "init",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_tf32_supported",
    "set_device",
    "set_sync_debug_mode",
    "synchronize",
]

_Device = torch.device | int | str | None

_properties: dict[int, DeviceProperties] = {}


def is_available() -> bool:
    """Return whether there is a device; opens none."""
    return _C.device_count() > 0


def device_count() -> int:
    """Return the number of devices; opens none."""
    return _C.device_count()


def is_initialized() -> bool:
    """Return whether the device is in use in this process."""
    return (_context.is_initialized or _C.any_device_opened()) and not _C.in_bad_fork()


def init() -> None:
    """Mark the device as in use, like its first use would, without opening a device.

    In a forked child of a process that has used the device, this raises an error.
    """
    _lazy_init()


def _lazy_init() -> None:
    if _C.in_bad_fork():
        _C.open_device(_C.current_device())  # raises, with the advice
    _context.mark_initialized()


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def current_device() -> int:
    """Return the index of this thread's current device."""
    return torch.accelerator.current_device_index()


def set_device(device: torch.device | int | str) -> None:
    """Set this thread's current device; a negative index changes nothing."""
    index = device_index(device)
    if index >= 0:
        torch.accelerator.set_device_index(index)
        _context.mark_initialized()


def _exchange_device(device: int) -> int:
    return _C.maybe_exchange_device(device)


def _maybe_exchange_device(device: int) -> int:
    return _C.maybe_exchange_device(device)


class _DeviceGuard:
    """A scope that selects a device by its index."""

    def __init__(self, index: int) -> None:
        self.idx = index
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.idx = _maybe_exchange_device(self.prev_idx)


class device(_DeviceGuard):
    """A scope that selects a device; None and a negative index change nothing."""

    def __init__(self, device: _Device) -> None:
        super().__init__(-1 if device is None else device_index(device))


class device_of(device):
    """A scope that selects the device of a tensor or storage; another kind of device changes nothing."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage | torch.TypedStorage) -> None:
        where = obj.device if isinstance(obj.device, torch.device) else torch.device(obj.device)
        super().__init__(where.index if where.type == _context.name else None)


def get_device_properties(device: _Device = None) -> DeviceProperties:
    """Return the driver's properties of a device, which it reports once. This may open the device's runtime."""
    index = device_index(device)
    if index not in _properties:
        _properties[index] = DeviceProperties.from_table(_C.device_properties(index))
    return _properties[index]


def get_device_name(device: _Device = None) -> str:
    """Return the device's name."""
    return get_device_properties(device).name


def get_device_capability(device: _Device = None) -> tuple[int, int]:
    """Return the compute capability as (major, minor).

    `torch.accelerator.get_device_capability` returns dtypes instead.
    """
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_arch_list() -> list[str]:
    """Return the architectures of the devices, each once."""
    architectures = (get_device_properties(index).architecture for index in range(device_count()))
    return list(dict.fromkeys(architecture for architecture in architectures if architecture))


def get_gencode_flags() -> str:
    """Return '': there are no flags, because no kernels are compiled ahead of time."""
    return ""


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return whether the current device's kernels may use bfloat16."""
    return torch.bfloat16 in get_device_properties().dtypes


def is_tf32_supported() -> bool:
    """Return False: TF32, NVIDIA's rounded float32, is not supported."""
    return False


def can_device_access_peer(device: torch.device | int | str, peer_device: torch.device | int | str) -> bool:
    """Return whether one device reaches another's memory without the host; opens both."""
    return _C.can_access_peer(device_index(device), device_index(peer_device))


def synchronize(device: _Device = None) -> None:
    """Wait for all work of a device, and raise its first failure."""
    torch.accelerator.synchronize(device_index(device))


def _get_device(device: torch.device | int | str) -> torch.device:
    return torch.device(_context.name, device_index(device))


def _module_getattr(attribute: str) -> Any:
    """Return an attribute of torch.<name> that is computed at each access."""
    if attribute == "_initialized":
        return is_initialized()
    if attribute == "default_generators":
        return default_generators()
    raise AttributeError(f"module 'torch.{_context.name}' has no attribute {attribute!r}")


_SYNC_DEBUG_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Set the reaction to operations that make the host wait for the device, like torch.cuda.set_sync_debug_mode.

    Such operations are item(), copies to the host, copies from unpinned memory or without non_blocking=True, operators
    whose result sizes depend on values (such as nonzero()), operators that run on the CPU, and synchronize() of a
    stream. Waits for a device or an event are not reported. Small copies to the device are not reported either, because
    they are staged.

    Args:
        debug_mode: "default" or 0 does nothing, "warn" or 1 issues a UserWarning, "error" or 2 raises a RuntimeError
            before anything is queued. It applies to all threads and devices.

    Raises:
        ValueError: `debug_mode` is none of these.
    """
    level = _SYNC_DEBUG_MODES.index(debug_mode) if debug_mode in _SYNC_DEBUG_MODES else debug_mode
    if isinstance(level, bool) or level not in range(len(_SYNC_DEBUG_MODES)):
        choices = ", ".join(f"{number} or {name!r}" for number, name in enumerate(_SYNC_DEBUG_MODES))
        raise ValueError(f"set_sync_debug_mode takes {choices}, got {debug_mode!r}")
    _C.set_sync_debug_mode(int(level))


def get_sync_debug_mode() -> int:
    """Return the mode of set_sync_debug_mode, as a number."""
    return _C.get_sync_debug_mode()
