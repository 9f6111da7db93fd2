# SPDX-License-Identifier: BSD-3-Clause
"""Memory of torch.<name>, over torch.accelerator's statistics, which have CUDA's names."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_outboard import _C
from torch_outboard.device import _context
from torch_outboard.device._context import device_index
from torch_outboard.device._summary import summary_table
from torch_outboard.device.memory_history import (  # noqa: F401 - also under torch.<name>.memory, as under torch.cuda
    _dump_snapshot,
    _record_memory_history,
    _save_memory_usage,
    _save_segment_usage,
    _snapshot,
    memory_snapshot,
)
from torch_outboard.device.memory_pools import (  # noqa: F401 - also under torch.<name>.memory, as under torch.cuda
    MemPool,
    PluggableAllocator,
    change_current_allocator,
    use_mem_pool,
)
from torch_outboard.device.sharing import from_blob, host_register, host_unregister, ipc_collect

__all__ = [
    "attach_out_of_memory_observer",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "device_memory_used",
    "empty_cache",
    "from_blob",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "host_register",
    "host_unregister",
    "ipc_collect",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]

_Device = torch.device | int | str | None


def empty_cache() -> None:
    """Return unused cached memory to the driver."""
    torch.accelerator.empty_cache()


def memory_stats(device: _Device = None) -> OrderedDict[str, Any]:
    """Return the allocator's statistics under CUDA's dotted names, such as "allocated_bytes.all.current"."""
    return torch.accelerator.memory_stats(device_index(device))


def memory_stats_as_nested_dict(device: _Device = None) -> dict[str, Any]:
    """Return the statistics as nested dicts: stats["allocated_bytes"]["all"]["current"]."""
    nested: dict[str, Any] = {}
    for dotted, value in memory_stats(device).items():
        *path, last = dotted.split(".")
        level = nested
        for part in path:
            level = level.setdefault(part, {})
        level[last] = value
    return nested


def memory_allocated(device: _Device = None) -> int:
    """Return the bytes that tensors occupy."""
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: _Device = None) -> int:
    """Return the peak of the bytes that tensors occupy, since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: _Device = None) -> int:
    """Return the bytes that the allocator has reserved from the driver."""
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: _Device = None) -> int:
    """Return the peak of the reserved bytes, since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_reserved(device_index(device))


def memory_cached(device: _Device = None) -> int:
    """Return `memory_reserved`; this is its old name."""
    return memory_reserved(device)


def max_memory_cached(device: _Device = None) -> int:
    """Return `max_memory_reserved`; this is its old name."""
    return max_memory_reserved(device)


def reset_peak_memory_stats(device: _Device = None) -> None:
    """Reset the peaks to the current values."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: _Device = None) -> None:
    """Reset the totals of allocated and freed memory to 0."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def reset_max_memory_allocated(device: _Device = None) -> None:
    """Reset all peaks, like `reset_peak_memory_stats`; this is an old name."""
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: _Device = None) -> None:
    """Reset all peaks, like `reset_peak_memory_stats`; this is an old name."""
    reset_peak_memory_stats(device)


def mem_get_info(device: _Device = None) -> tuple[int, int]:
    """Return the device's free and total bytes; opens the device."""
    free, total = torch.accelerator.get_memory_info(device_index(device))
    return free, total


def device_memory_used(device: _Device = None) -> int:
    """Return the bytes in use on the device, by all processes if the driver sees them; opens the device."""
    free, total = mem_get_info(device)
    return total - free


def memory_summary(device: _Device = None, abbreviated: bool = False) -> str:
    """Return the statistics as the table that CUDA prints; an abbreviated table omits the small and the large pool."""
    index = device_index(device)
    return summary_table(f"device {_context.name}:{index}", memory_stats(index), abbreviated=abbreviated)


def set_per_process_memory_fraction(fraction: float, device: _Device = None) -> None:
    """Limit this process to a fraction of a device's memory; allocations beyond the limit raise torch.OutOfMemoryError.

    Memory that is already reserved stays reserved.

    Raises
    ------
    TypeError
        The fraction is not a float, as for torch.cuda.
    ValueError
        The fraction is outside 0 to 1, or the driver does not report the total memory.
    """
    if not isinstance(fraction, float):
        raise TypeError(f"Invalid type for fraction argument, must be `float`, not {type(fraction).__name__}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C.set_memory_fraction(device_index(device), fraction)


def get_per_process_memory_fraction(device: _Device = None) -> float:
    """Return the fraction of the device's memory that this process may have; 1.0 unless it was set."""
    return _C.memory_fraction(device_index(device))


class ObserverHandle:
    """The handle of an observer, from `attach_out_of_memory_observer`."""

    def __init__(self, number: int) -> None:
        self._number = number

    def remove(self) -> None:
        """Detach the observer. A call that is running continues. Further calls of `remove` do nothing."""
        _C.detach_out_of_memory_observer(self._number)


def attach_out_of_memory_observer(observer: Callable[[int, int, int, int], object]) -> ObserverHandle:
    """Call `observer(device, requested, device_total, device_free)` when an allocation finds no memory.

    The observer runs on the allocating thread, after the cache was emptied and before `torch.OutOfMemoryError`. If it
    frees tensors, the allocation is tried once more. An exception of the observer replaces the error.
    """
    return ObserverHandle(_C.attach_out_of_memory_observer(observer))


def caching_allocator_alloc(size: int, device: _Device = None, stream: torch.Stream | int | None = None) -> int:
    """Allocate device memory for another library, and return its address.

    `stream` is the stream that uses the memory, or its id; None means the current stream. `caching_allocator_delete`
    frees the memory.
    """
    index = device_index(device)
    if size < 0:
        raise ValueError(f"the size of an allocation must be at least 0, not {size}")
    if stream is None:
        stream = _C.current_stream(index)
    elif isinstance(stream, torch.Stream):
        if stream.device != torch.device(_context.name, index):
            raise ValueError(f"the stream must be on {_context.name}:{index}, like the memory, not on {stream.device}")
        stream = stream.stream_id
    return _C.raw_allocate(index, stream, size)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free memory from `caching_allocator_alloc`. Raise ValueError for other addresses, or if it was freed before."""
    _C.raw_free(mem_ptr)


def caching_allocator_enable(value: bool = True) -> None:
    """Turn caching on or off for all devices. Without caching, each allocation gets its own memory from the driver.

    Memory that is freed meanwhile returns to the driver at the next allocation on its stream, the next synchronisation
    or `empty_cache`.
    """
    _C.enable_caching(value)


@contextlib.contextmanager
def caching_allocator_disabled() -> Iterator[None]:
    """Turn caching off for the duration of a `with` statement, in all threads."""
    was_enabled = _C.is_caching_enabled()
    _C.enable_caching(False)
    try:
        yield
    finally:
        _C.enable_caching(was_enabled)


def host_memory_stats() -> OrderedDict[str, Any]:
    """Return the statistics of pinned host memory under CUDA's dotted names, such as "active_bytes.current"."""
    flat: OrderedDict[str, Any] = OrderedDict()
    for group, entry in sorted(host_memory_stats_as_nested_dict().items()):
        if isinstance(entry, dict):
            flat.update((f"{group}.{key}", entry[key]) for key in sorted(entry))
        else:
            flat[group] = entry
    return flat


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Return the statistics of pinned host memory: stats["active_bytes"]["current"]; times are in microseconds."""
    return _C.host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Reset the peaks of pinned memory to the current values."""
    _C.reset_host_memory_stats(True)


def reset_accumulated_host_memory_stats() -> None:
    """Reset the totals of pinned and freed memory to 0."""
    _C.reset_host_memory_stats(False)
