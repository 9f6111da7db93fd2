# SPDX-License-Identifier: BSD-3-Clause
"""Private memory pools and pluggable allocators."""

from __future__ import annotations

import ctypes
import gc
import threading

import pytest
import torch

from .support import module_of

MIB = 1 << 20
ABSURD = 1 << 52
ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


@pytest.fixture(autouse=True)
def empty_cache(device):
    gc.collect()
    torch.accelerator.synchronize(device)
    module_of(device).empty_cache()


def block(device, size):
    return torch.empty(size, dtype=torch.uint8, device=device)


def test_a_pool_keeps_its_memory_to_itself(device):
    module = module_of(device)
    pool = module.MemPool()
    assert pool.use_count() == 1 and pool.id != module.MemPool().id
    with module.use_mem_pool(pool):
        assert pool.use_count() == 2
        inside = block(device, 3 * MIB).fill_(1)
    assert pool.use_count() == 1
    address = inside.data_ptr()
    del inside
    outside = block(device, 3 * MIB)
    assert outside.data_ptr() != address
    with module.use_mem_pool(pool):
        again = block(device, 3 * MIB)
    assert again.data_ptr() == address
    reserved = module.memory_reserved(device)
    del again
    module.empty_cache()  # the pool is in use: a graph could write there
    assert module.memory_reserved(device) == reserved
    del pool
    assert module.memory_reserved(device) < reserved
    del outside


def test_memory_outlives_its_pool(device):
    module = module_of(device)
    pool = module.MemPool()
    with module.use_mem_pool(pool, device):
        tensor = torch.arange(100_000, device=device)
    del pool
    module.empty_cache()
    assert tensor.sum().item() == 100_000 * 99_999 // 2
    reserved = module.memory_reserved(device)
    del tensor
    torch.accelerator.synchronize(device)
    module.empty_cache()
    assert module.memory_reserved(device) < reserved


def test_pools_nest_and_other_threads_stay_outside(device):
    module = module_of(device)
    outer, inner = module.MemPool(), module.MemPool()
    before = module.memory_reserved(device)
    addresses = {}
    with module.use_mem_pool(outer):
        with module.use_mem_pool(inner):
            addresses["inner"] = block(device, 100).data_ptr()
        addresses["outer"] = block(device, 100).data_ptr()
        thread = threading.Thread(target=lambda: addresses.update(thread=block(device, 100).data_ptr()))
        thread.start()
        thread.join()
    addresses["common"] = block(device, 100).data_ptr()
    assert addresses["thread"] == addresses["common"]
    assert len(set(addresses.values())) == 3
    assert module.memory_reserved(device) > before


def test_a_pool_may_serve_others_when_memory_is_short(device):
    module = module_of(device)
    total = module.get_device_properties(device).total_memory
    if total == 0:
        pytest.skip("capability: total_memory. The driver does not say how much memory there is")
    pool, spare = module.MemPool(), module.MemPool(use_on_oom=True)
    for each in (pool, spare):
        with module.use_mem_pool(each):
            block(device, 40 * MIB)
    module.set_per_process_memory_fraction((module.memory_reserved(device) + 0.5) / total, device)
    try:
        tensor = block(device, 40 * MIB).fill_(5)
        with pytest.raises(torch.OutOfMemoryError):
            block(device, 40 * MIB)
        assert tensor[-1].item() == 5
    finally:
        module.set_per_process_memory_fraction(1.0, device)
    del tensor, pool, spare


def test_segments_stay_whole_where_asked(device):
    module = module_of(device)
    pool = module.MemPool(no_split=True)
    segments = module.memory_stats(device)["segment.all.current"]
    with module.use_mem_pool(pool):
        tensors = [block(device, 1000) for _ in range(3)]
    assert module.memory_stats(device)["segment.all.current"] == segments + 3
    del tensors, pool


def test_wrong_uses_of_pools(device):
    module = module_of(device)
    pool = module.MemPool()
    from torch_outboard import _C

    with pytest.raises(ValueError, match="do not go to memory pool"):
        _C.end_allocate_thread_to_pool(device.index, pool.id)
    with pytest.raises(ValueError, match="is not in use"):
        _C.release_pool(device.index, module.graph_pool_handle())
    with pytest.raises(ValueError, match="not a private memory pool"):
        _C.use_pool(device.index, (0, 0), False, False, 0)
    with pytest.raises(TypeError, match="PluggableAllocator"):
        module.MemPool(allocator=3)
    assert module.graph_pool_handle() != module.graph_pool_handle()


def test_a_pool_of_a_pluggable_allocator(device):
    module = module_of(device)
    arena = module.caching_allocator_alloc(64 * MIB, device)
    calls = []
    used = 0

    @ALLOC
    def alloc(size, index, stream):
        nonlocal used
        if used + size > 64 * MIB:
            return None
        used += size
        calls.append(("alloc", arena + used - size, size, index))
        return arena + used - size

    @FREE
    def free(pointer, size, index, stream):
        calls.append(("free", pointer, size, index))

    pool = module.MemPool(module.memory.PluggableAllocator.from_functions(alloc, free).allocator())
    with module.use_mem_pool(pool):
        tensor = torch.arange(1000, device=device)
        second = block(device, 1000)
        with pytest.raises(torch.OutOfMemoryError):
            block(device, 100 * MIB)
    assert calls == [("alloc", arena, 2 * MIB, device.index)]
    assert arena <= tensor.data_ptr() < second.data_ptr() < arena + 2 * MIB
    assert tensor.sum().item() == 499_500
    del tensor, second, pool
    assert calls[1:] == [("free", arena, 2 * MIB, device.index)]
    module.caching_allocator_delete(arena)


CHANGED = """
import ctypes, sys, torch, torch_outboard
module = torch_outboard.attach(sys.argv[1])
ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
calls = []
alloc = ALLOC(lambda size, device, stream: calls.append(size))
free = FREE(lambda *arguments: None)
allocator = module.memory.PluggableAllocator.from_functions(alloc, free)
module.change_current_allocator(allocator)
try:
    torch.empty(1000, device=module.__name__.rpartition(".")[2])
except torch.OutOfMemoryError:
    assert calls and set(calls) == {4096}, calls
else:
    raise AssertionError
try:
    module.change_current_allocator(allocator)
except ValueError as error:
    assert "before the first allocation" in str(error)
else:
    raise AssertionError
"""


def test_changing_the_allocator(device, driver_name, run_python, request):
    run_python(CHANGED, request.config.getoption("--driver"))
