# SPDX-License-Identifier: BSD-3-Clause
"""The device as Dynamo and Inductor see it. This module imports Dynamo."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch._dynamo import device_interface
from torch._dynamo.device_interface import DeviceInterface
from torch._inductor import config

from torch_outboard import _C
from torch_outboard.compile.device import cache_key
from torch_outboard.compile.generators import generators
from torch_outboard.device import devices, memory, streams

__all__ = ["OutboardInterface", "register_interface"]

_NAME = _C.driver_name()

# The number of processors that Inductor sees on every device. With fewer, Inductor splits fewer
# reductions before it calls our generators (codegen/mapping/parts.py), which decide from sizes
# alone. Generated code therefore fits all devices of a kind.
_PROCESSORS = 128


class _Worker:
    """The interface in compile workers, which must not open a device. The parent process supplies the properties."""

    @staticmethod
    def set_device(device: int) -> None:
        device_interface.caching_worker_current_devices[_NAME] = device

    @staticmethod
    def current_device() -> int:
        current = device_interface.caching_worker_current_devices.get(_NAME)
        return _C.current_device() if current is None else current

    @staticmethod
    def get_device_properties(device: torch.types.Device = None) -> Any:
        known = device_interface.caching_worker_device_properties
        if _NAME not in known:
            own = [devices.get_device_properties(index) for index in range(_C.device_count())]
            known[_NAME] = [dataclasses.replace(properties, multi_processor_count=_PROCESSORS) for properties in own]
        index = _Worker.current_device() if device is None else _index(device)
        return known[_NAME][index]


def _index(device: torch.types.Device) -> int:
    if isinstance(device, int):
        return device
    where = torch.device(device)  # type: ignore[arg-type]
    if where.type != _NAME:
        raise ValueError(f"{device!r} is not a device of {_NAME!r}")
    return _Worker.current_device() if where.index is None else where.index


class OutboardInterface(DeviceInterface):
    """The attached driver's devices.

    `is_gpu` is true if a device's generator requests it; torch then assumes that Triton works. Everything else that
    depends on the flag (indexed allocations, streams, guards) comes from our own wrapper.
    """

    device = devices.device
    Event = torch.Event
    Stream = torch.Stream
    Worker = _Worker  # type: ignore[assignment]

    current_device = staticmethod(devices.current_device)
    set_device = staticmethod(devices.set_device)  # type: ignore[assignment]
    exchange_device = staticmethod(devices._exchange_device)
    maybe_exchange_device = staticmethod(devices._maybe_exchange_device)
    device_count = staticmethod(devices.device_count)
    is_available = staticmethod(devices.is_available)
    stream = staticmethod(streams.stream)
    current_stream = staticmethod(streams.current_stream)
    set_stream = staticmethod(streams.set_stream)
    _set_stream_by_id = staticmethod(streams._set_stream_by_id)
    get_raw_stream = staticmethod(streams._get_current_raw_stream)  # type: ignore[assignment]
    synchronize = staticmethod(devices.synchronize)
    memory_allocated = staticmethod(memory.memory_allocated)

    @staticmethod
    def get_compute_capability(device: torch.types.Device = None) -> str:
        """Return the architecture on which compiled code depends."""
        properties = _Worker.get_device_properties(device)
        return properties.architecture or f"{properties.major}.{properties.minor}"

    @classmethod
    def is_bf16_supported(cls, including_emulation: bool = False) -> bool:
        return cls.is_dtype_supported(torch.bfloat16)

    @classmethod
    def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return dtype in _Worker.get_device_properties().dtypes

    @staticmethod
    def is_gpu() -> bool:
        return generators().has_gpus

    @staticmethod
    def is_triton_capable(device: torch.types.Device = None) -> bool:
        return generators().has_gpus

    @classmethod
    def get_multi_processor_count(cls, device: torch.types.Device = None) -> int:
        return _PROCESSORS

    @staticmethod
    def get_cpp_device_options(aot_mode: bool, compile_only: bool) -> Any:
        """Return the settings with which torch 2.15 compiles C++ for the device: a folder with the models' header."""
        from torch_outboard.compile.device.choice import model_header
        from torch_outboard.compile.device.header import folder_of

        header = model_header() if aot_mode else None
        if header is None:
            return None  # use torch's own options
        # Definitions, include folders, compiler flags, linker flags, library folders, libraries,
        # arguments: torch adds its own headers and libraries.
        return [], [folder_of(header, _NAME)], [], [], [], list(config.aot_inductor.custom_op_libs or ()), []

    @classmethod
    def get_cache_system_info(cls) -> dict[str, object] | None:
        """Return the device's part of the key of torch 2.15's caches; older versions get it from PrepareGraph."""
        return dict(cache_key.cache_key())


def register_interface() -> None:
    """Register the device with Dynamo, by its type and as "type:index" for each device."""
    device_interface.register_interface_for_device(_NAME, OutboardInterface)
    for index in range(_C.device_count()):
        device_interface.register_interface_for_device(f"{_NAME}:{index}", OutboardInterface)
