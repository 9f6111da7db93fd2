# SPDX-License-Identifier: BSD-3-Clause
"""Device properties, as drivers return them and as users see them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torch_outboard._options import nearest

__all__ = ["DTYPES", "MACHINES", "DeviceProperties", "dtype_bits", "to_table"]

# Values of ob_dtype in driver.h; the numbers are also torch's own.
DTYPES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}


def dtype_bits(dtypes: Iterable[torch.dtype]) -> int:
    """Return the bits of ob_device_properties.dtypes for dtypes."""
    bits = 0
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"drivers cannot declare {dtype}, because driver.h defines no number for it")
        bits |= 1 << DTYPES[dtype]
    return bits


@dataclass(frozen=True)
class DeviceProperties:
    """The result of `torch.<name>.get_device_properties`. 0 and "" mean that the driver does not report the value.

    Attributes
    ----------
    total_memory : int
        Bytes.
    dtypes : frozenset of torch.dtype
        The dtypes that kernels may use.
    major, minor : int
        Compute capability, or the driver's own numbering.
    clock_rate : int
        kHz.
    machine : str
        "cpu" or "gpu": the kind of machine that generated kernels are written for.
    addresses_host_memory : bool
        Whether kernels use pinned memory by the host's addresses.
    follows_addresses : bool
        Whether kernels use addresses that they read from memory, so that an operator over a list of tensors is one
        launch.
    shared_memory_per_multiprocessor : int
        Bytes.
    matrix_units : str
        The matrix sizes that one instruction multiplies, such as "float16 16x16x16, bfloat16 16x16x16": element type,
        then rows x columns x steps.
    """

    name: str = ""
    vendor: str = ""
    architecture: str = ""
    driver_version: str = ""
    uuid: bytes = bytes(16)
    total_memory: int = 0
    dtypes: frozenset[torch.dtype] = frozenset(DTYPES)
    major: int = 0
    minor: int = 0
    multi_processor_count: int = 0
    warp_size: int = 0
    max_threads_per_block: int = 0
    max_threads_per_multi_processor: int = 0
    regs_per_multiprocessor: int = 0
    clock_rate: int = 0
    shared_memory_per_block: int = 0
    l2_cache_size: int = 0
    is_integrated: bool = False
    stream_priority_least: int = 0
    stream_priority_greatest: int = 0
    mem_granularity: int = 0
    max_allocation: int = 0
    machine: str = ""
    addresses_host_memory: bool = False
    follows_addresses: bool = False
    shared_memory_per_multiprocessor: int = 0
    matrix_units: str = ""

    @property
    def L2_cache_size(self) -> int:  # noqa: N802 - CUDA's spelling
        """The same as l2_cache_size, in CUDA's spelling."""
        return self.l2_cache_size

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> DeviceProperties:
        """Return the properties from the core's table."""
        bits = table["dtypes"]
        dtypes = frozenset(dtype for dtype, number in DTYPES.items() if bits == 0 or bits >> number & 1)
        values: dict[str, Any] = {
            name: bool(value) if getattr(cls, name) is False else value for name, value in table.items()
        }
        return cls(**{**values, "dtypes": dtypes, "machine": _name_of_machine(table["machine"])})


# OB_MACHINE_ constants of driver.h.
MACHINES = {"": 0, "cpu": 1, "gpu": 2}


def _name_of_machine(number: int) -> str:
    return next((name for name, known in MACHINES.items() if known == number), "")


_FIELDS = [field.name for field in dataclasses.fields(DeviceProperties)]


def to_table(properties: object) -> dict[str, Any]:
    """Convert a Python driver's result, a dict or DeviceProperties, to the form that the core reads.

    Any other result raises TypeError, and an unknown key ValueError; both count as driver failures.
    """
    if isinstance(properties, DeviceProperties):
        table = {name: getattr(properties, name) for name in _FIELDS}
    elif isinstance(properties, Mapping):
        table = dict(properties)
    else:
        raise TypeError(f"device_properties must return a dict or DeviceProperties, not {type(properties).__name__}")
    for name in table:
        if name not in _FIELDS:
            raise ValueError(f"a device has no property {name!r}.{nearest(str(name), _FIELDS)}")
    if "dtypes" in table and not isinstance(table["dtypes"], int):
        table["dtypes"] = dtype_bits(table["dtypes"])
    if isinstance(machine := table.get("machine"), str):
        if machine not in MACHINES:
            raise ValueError(f"the property 'machine' must be {' or '.join(map(repr, MACHINES))}, not {machine!r}")
        table["machine"] = MACHINES[machine]
    return table
