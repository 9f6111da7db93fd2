# SPDX-License-Identifier: BSD-3-Clause
"""A driver's devices without hardware, one per architecture. Calls on them build plans but compute nothing.

Memory has addresses but no content, launches are dropped, and each copy to the host returns zeros. Plans do not depend
on values, so they are the same as on hardware.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch_outboard._errors import RegistrationError
from torch_outboard._options import nearest
from torch_outboard.driver import OPTIONAL_ENTRIES, REQUIRED_ENTRIES, Driver

__all__ = ["check_architectures", "without_device"]

_HOST = -1
_MEMORY = 64 << 30
_UNIT = 2 << 20  # addresses are multiples of this
_ALIGNMENT = 64


def check_architectures(driver: type[Driver], names: Sequence[str]) -> None:
    """Raise RegistrationError if the driver cannot build programs for these architectures without a device."""
    if not driver.architectures:
        raise RegistrationError(
            f"the driver {driver.name!r} cannot build programs without a device: its class must list in "
            "`architectures` the architectures that its `compile_program` supports"
        )
    for name in names:
        if name not in driver.architectures:
            raise RegistrationError(
                f"the driver {driver.name!r} does not support the architecture {name!r}, only "
                f"{', '.join(driver.architectures)}.{nearest(name, list(driver.architectures))}"
            )


def without_device(driver: type[Driver], names: Sequence[str], options: Mapping[str, Any]) -> Driver:
    """Return a driver to attach instead of `driver`, with one device per architecture."""
    check_architectures(driver, names)
    kind = type(driver.__name__, (_WithoutDevice, driver), {"__module__": driver.__module__})
    made = kind(**options)
    made._names = tuple(names)
    return made  # type: ignore[no-any-return]


class _WithoutDevice(Driver):
    """The entries of a driver without hardware.

    From the driver's class it keeps only what determines generated kernels, not the entries or the library.
    """

    library = None
    probe_opens = False
    kernels = {}  # noqa: RUF012 - as Driver declares it

    _names: tuple[str, ...] = ()

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._handles = itertools.count(1)
        self._addresses: Iterator[int] = itertools.count(1 << 45, _UNIT)
        self._pinned: dict[int, Any] = {}

    def device_count(self) -> int:
        return len(self._names)

    def device_properties(self, device: int) -> Any:
        name = self._names[device]
        return {"name": name, "architecture": name, "total_memory": _MEMORY, **self.architectures[name]}

    def mem_alloc(self, device: int, bytes: int) -> int:
        address = next(self._addresses)
        for _ in range(bytes // _UNIT):  # these addresses belong to the allocation too
            next(self._addresses)
        return address

    def mem_free(self, device: int, address: int) -> None:
        pass

    def mem_info(self, device: int) -> tuple[int, int]:
        return _MEMORY, _MEMORY

    def host_alloc(self, bytes: int) -> int:
        memory = ctypes.create_string_buffer(bytes + _ALIGNMENT)
        pointer = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
        self._pinned[pointer] = memory
        return pointer

    def host_free(self, pointer: int) -> None:
        del self._pinned[pointer]

    def copy_async(
        self, device: int, stream: int, dst: int, src: int, bytes: int, dst_device: int, src_device: int
    ) -> None:
        if dst_device == _HOST:
            ctypes.memset(dst, 0, bytes)

    def fill_async(self, device: int, stream: int, dst: int, pattern: bytes, count: int) -> None:
        pass

    def stream_create(self, device: int, priority: int) -> int:
        return next(self._handles)

    def stream_destroy(self, device: int, stream: int) -> None:
        pass

    def stream_synchronize(self, device: int, stream: int) -> None:
        pass

    def event_create(self, device: int, flags: int) -> int:
        return next(self._handles)

    def event_destroy(self, device: int, event: int) -> None:
        pass

    def event_record(self, device: int, stream: int, event: int) -> None:
        pass

    def event_query(self, device: int, event: int) -> bool:
        return True

    def stream_wait_event(self, device: int, stream: int, event_device: int, event: int) -> None:
        pass

    def program_build(self, device: int, language: str, code: bytes, options: str) -> int:
        return next(self._handles)

    def program_destroy(self, device: int, program: int) -> None:
        pass

    def kernel_get(self, device: int, program: int, name: str) -> int:
        return next(self._handles)

    def kernel_launch(self, *launch: object) -> None:
        pass


for _entry in (*REQUIRED_ENTRIES, *OPTIONAL_ENTRIES):
    if _entry not in vars(_WithoutDevice):
        setattr(_WithoutDevice, _entry, None)
