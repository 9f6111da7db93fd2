# SPDX-License-Identifier: BSD-3-Clause
"""Private memory pools of torch.<name>, and pluggable allocators, which replace the driver's memory."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch

from torch_outboard import _C
from torch_outboard.device import _context
from torch_outboard.device._context import device_index
from torch_outboard.device.memory_history import memory_snapshot

__all__ = ["MemPool", "change_current_allocator", "graph_pool_handle", "use_mem_pool"]

_Device = torch.device | int | str | None


class PluggableAllocator:
    """An allocator of two C functions in a shared library, for `MemPool` and `change_current_allocator`.

    `void* alloc(ptrdiff_t size, int device, void* stream)` returns memory that the driver can use, aligned to 512
    bytes, or null if there is none. `void free(void* pointer, ptrdiff_t size, int device, void* stream)` is called once
    no work uses the memory. `stream` is the driver's handle. Any thread may call them.
    """

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        library = ctypes.CDLL(path_to_so_file)
        addresses = [
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in (alloc_fn_name, free_fn_name)
        ]
        self._keep: object = library
        self._source = _C.make_segment_source(*addresses)

    @classmethod
    def from_functions(cls, alloc: Any, free: Any) -> PluggableAllocator:
        """Build an allocator from two ctypes functions.

        An exception in a Python callback is lost and counts as null.
        """
        self = cls.__new__(cls)
        addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (alloc, free)]
        self._keep = (alloc, free)
        _kept.append(self._keep)
        self._source = _C.make_segment_source(*addresses)
        return self

    def allocator(self) -> PluggableAllocator:
        """Return this object, because code for in-tree devices passes `.allocator()` to `MemPool`."""
        return self


# The functions are called as long as memory from them exists.
_kept: list[object] = []


def change_current_allocator(allocator: PluggableAllocator) -> None:
    """Take all memory of all devices from an allocator, without caching.

    Raises
    ------
    ValueError
        Memory was already allocated.
    """
    _C.change_current_allocator(_source_of(allocator))


class MemPool:
    """A private memory pool: allocations in `use_mem_pool` come from the pool, and their memory returns to it.

    Parameters
    ----------
    allocator : PluggableAllocator, optional
        The source of the pool's memory; the driver by default.
    use_on_oom : bool
        Whether free memory of the pool may serve other allocations that find none.
    no_split : bool
        Whether segments of the pool are never split.

    Free memory stays reserved while the pool is in use. The memory of live tensors outlives the pool.
    """

    def __init__(
        self, allocator: PluggableAllocator | None = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        self.allocator = allocator
        self._id = _C.new_mempool_id()
        self._options = (use_on_oom, no_split, 0 if allocator is None else _source_of(allocator))
        self._devices: set[int] = set()
        self._use_on(device_index(None))

    @property
    def id(self) -> tuple[int, int]:
        """The id, as in snapshots."""
        return self._id

    @property
    def device(self) -> torch.device:
        """The device that was current when the pool was created."""
        return torch.device(_context.name, self._first)

    def use_count(self) -> int:
        """Return the number of uses on the pool's `device`: one for this object and one per `use_mem_pool`."""
        return _C.pool_use_count(self._first, self._id)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Return the segments of the pool on all devices."""
        return memory_snapshot(self._id, include_traces)

    def _use_on(self, index: int) -> None:
        if index not in self._devices:
            _C.use_pool(index, self._id, *self._options)
            if not self._devices:
                self._first = index
            self._devices.add(index)

    def __del__(self) -> None:
        # This also runs if __init__ raised. Free memory then returns to the driver.
        devices = self.__dict__.get("_devices", set())
        while devices:
            _C.release_pool(devices.pop(), self._id)
            if not devices:
                _C.empty_pool_cache(self._id)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: _Device = None) -> Iterator[None]:
    """Send this thread's allocations on the device to the pool; other threads (a backward pass) are unaffected."""
    index = device_index(device)
    pool._use_on(index)
    _C.begin_allocate_thread_to_pool(index, pool.id)
    try:
        yield
    finally:
        _C.end_allocate_thread_to_pool(index, pool.id)
        _C.release_pool(index, pool.id)


def graph_pool_handle() -> tuple[int, int]:
    """Return the id of a new memory pool, for graphs to share."""
    return _C.new_mempool_id()


def _source_of(allocator: PluggableAllocator) -> int:
    if not isinstance(allocator, PluggableAllocator):
        raise TypeError(f"expected a torch.{_context.name}.memory.PluggableAllocator, not {type(allocator).__name__}")
    return allocator._source
