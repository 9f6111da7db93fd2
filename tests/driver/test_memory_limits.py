# SPDX-License-Identifier: BSD-3-Clause
"""Limits, pressure, raw allocations and statistics beyond torch's own."""

from __future__ import annotations

import gc

import pytest
import torch

from .support import module_of, pinned

MIB = 1 << 20
ABSURD = 1 << 52


@pytest.fixture(autouse=True)
def empty_cache(device):
    gc.collect()
    torch.accelerator.synchronize(device)
    module_of(device).empty_cache()


@pytest.fixture
def limited(device):
    """Return a function that limits the device to a number of bytes above the reserved ones."""
    module = module_of(device)
    total = module.get_device_properties(device).total_memory
    if total == 0:
        pytest.skip("capability: total_memory. The driver does not say how much memory there is")

    def limit(extra):
        module.set_per_process_memory_fraction((module.memory_reserved(device) + extra + 0.5) / total, device)

    yield limit
    module.set_per_process_memory_fraction(1.0, device)


def block(device, size):
    return torch.empty(size, dtype=torch.uint8, device=device)


def test_a_memory_fraction_is_kept(device, limited):
    module = module_of(device)
    assert module.get_per_process_memory_fraction(device) == 1.0
    limited(64 * MIB)
    assert 0 < module.get_per_process_memory_fraction(device) < 1
    kept = block(device, 40 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match="set_per_process_memory_fraction"):
        block(device, 40 * MIB)
    assert block(device, 20 * MIB).fill_(1)[0].item() == 1
    del kept
    assert block(device, 60 * MIB).fill_(2)[-1].item() == 2
    module.set_per_process_memory_fraction(1.0, device)
    assert block(device, 80 * MIB).fill_(3)[-1].item() == 3


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_wrong_memory_fraction_is_refused(device, fraction):
    with pytest.raises(ValueError, match="Invalid fraction value: "):
        module_of(device).set_per_process_memory_fraction(fraction, device)
    for wrong in ("half", 1):
        with pytest.raises(TypeError, match="float"):
            module_of(device).set_per_process_memory_fraction(wrong, device)


def test_an_observer_sees_each_failure_and_may_make_room(device, limited):
    module = module_of(device)
    limited(64 * MIB)
    blocks = [block(device, 50 * MIB)]
    calls = []

    def observer(*arguments):
        calls.append(arguments)
        blocks.clear()

    handle = module.attach_out_of_memory_observer(observer)
    try:
        ooms = module.memory_stats(device)["num_ooms"]
        assert block(device, 40 * MIB).fill_(7)[-1].item() == 7
        assert module.memory_stats(device)["num_ooms"] == ooms
        with pytest.raises(torch.OutOfMemoryError):
            block(device, ABSURD)
        assert [call[:2] for call in calls] == [(device.index, 40 * MIB), (device.index, ABSURD)]
        assert all(call[2] == module.mem_get_info(device)[1] >= call[3] for call in calls)
    finally:
        handle.remove()
    with pytest.raises(torch.OutOfMemoryError):
        block(device, ABSURD)
    assert len(calls) == 2
    handle.remove()


def test_an_exception_of_an_observer_ends_the_allocation(device):
    def observer(*_):
        with pytest.raises(torch.OutOfMemoryError):
            block(device, ABSURD)  # calls no observer
        raise KeyError("mine")

    handle = module_of(device).attach_out_of_memory_observer(observer)
    try:
        with pytest.raises(KeyError, match="mine"):
            block(device, ABSURD)
    finally:
        handle.remove()
    with pytest.raises(TypeError, match="observer"):
        module_of(device).attach_out_of_memory_observer(3)


def test_raw_allocations(device):
    module = module_of(device)
    before = module.memory_allocated(device)
    address = module.caching_allocator_alloc(5000, device)
    on_stream = module.caching_allocator_alloc(100, device, torch.Stream(device))
    assert address != on_stream and address % 512 == 0
    assert module.memory_allocated(device) == before + 5120 + 512
    module.caching_allocator_delete(on_stream)
    module.caching_allocator_delete(address)
    assert module.memory_allocated(device) == before
    with pytest.raises(ValueError, match="no raw allocation"):
        module.caching_allocator_delete(address)
    with pytest.raises(ValueError, match="no raw allocation"):
        module.caching_allocator_delete(block(device, 10).data_ptr())
    module.caching_allocator_delete(module.caching_allocator_alloc(0, device))
    with pytest.raises(ValueError, match="at least 0"):
        module.caching_allocator_alloc(-1, device)


def test_without_caching_memory_goes_back(device):
    module = module_of(device)
    kept = block(device, 1000)
    reserved = module.memory_reserved(device)
    with module.caching_allocator_disabled():
        tensors = [block(device, size).fill_(1) for size in (1000, 5 * MIB, 3000)]
        assert module.memory_reserved(device) == reserved + 1024 + 5 * MIB + 3072
        del tensors
        last = block(device, 600)
        assert module.memory_reserved(device) == reserved + 1024
    del last
    torch.accelerator.synchronize(device)
    assert module.memory_reserved(device) == reserved
    del kept


def test_statistics_of_pinned_memory(device):
    module = module_of(device)
    module.reset_peak_host_memory_stats()
    before = module.host_memory_stats()["active_requests.current"]
    locked = pinned(3 * MIB, dtype=torch.uint8)
    after = module.host_memory_stats()
    nested = module.host_memory_stats_as_nested_dict()
    assert after["active_requests.current"] >= 1
    assert after["active_bytes.current"] >= 3 * MIB
    assert nested["active_bytes"]["current"] == after["active_bytes.current"]
    assert after["allocated_bytes.peak"] >= after["active_bytes.current"]
    assert {"num_host_alloc", "host_alloc_time.avg", "host_free_time.total"} <= after.keys()
    del locked
    assert module.host_memory_stats()["active_requests.current"] <= before  # copies of earlier tests may have ended
    module.reset_accumulated_host_memory_stats()
    assert module.host_memory_stats()["active_requests.allocated"] == 0


def test_the_summary_is_a_table(device):
    module = module_of(device)
    summary = module.memory_summary(device)
    lines = summary.splitlines()
    assert {len(line) for line in lines} == {77}
    assert any("Allocated memory" in line for line in lines) and "small pool" in summary
    assert "small pool" not in module.memory_summary(device, abbreviated=True)


def test_torch_accelerator_agrees(device):
    module = module_of(device)
    kept = block(device, 7 * MIB)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats"):
        assert getattr(torch.accelerator.memory, name)(device) == getattr(module, name)(device), name
    torch.accelerator.memory.reset_peak_memory_stats(device)
    assert module.max_memory_allocated(device) == module.memory_allocated(device) >= 7 * MIB
    torch.accelerator.memory.reset_accumulated_memory_stats(device)
    assert module.memory_stats(device)["allocation.all.allocated"] == 0
    del kept
