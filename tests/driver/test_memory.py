# SPDX-License-Identifier: BSD-3-Clause
"""The caching allocator, seen through torch."""

from __future__ import annotations

import gc

import pytest
import torch

from .support import module_of

MIB = 1 << 20
IMPOSSIBLE_BYTES = 1 << 52
STATISTICS = [
    f"{group}.{pool}.{value}"
    for group in (
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    )
    for pool in ("all", "small_pool", "large_pool")
    for value in ("current", "peak", "allocated", "freed")
]
STATISTICS += ["num_alloc_retries", "num_ooms"]


@pytest.fixture(autouse=True)
def empty_cache(device):
    gc.collect()
    torch.accelerator.synchronize(device)
    module_of(device).empty_cache()
    module_of(device).reset_peak_memory_stats(device)


def block(device, size):
    return torch.empty(size, dtype=torch.uint8, device=device)


def test_statistics_have_cudas_keys(device):
    stats = module_of(device).memory_stats(device)
    assert [key for key in STATISTICS if key not in stats] == []
    assert torch.accelerator.memory_stats(device).keys() >= set(STATISTICS)
    nested = module_of(device).memory_stats_as_nested_dict(device)
    assert nested["allocated_bytes"]["all"]["current"] == stats["allocated_bytes.all.current"]


def test_statistics_follow_allocations(device):
    """The test uses totals, which only grow: memory of earlier tests that is freed meanwhile counts only as freed."""
    module = module_of(device)

    def total(kind):
        stats = module.memory_stats(device)
        values = {key: stats[f"allocated_bytes.all.{key}"] for key in ("allocated", "freed", "current")}
        assert values["current"] == values["allocated"] - values["freed"]
        return values[kind]

    allocated = total("allocated")
    first = block(device, 1000)
    assert total("allocated") - allocated == 1024
    second = block(device, 5 * MIB)
    requested = 1024 + 5 * MIB
    assert total("allocated") - allocated == requested
    in_use = module.memory_allocated(device)
    assert requested <= in_use <= module.max_memory_allocated(device)
    assert in_use <= module.memory_reserved(device) <= module.max_memory_reserved(device)
    peak, freed = module.max_memory_allocated(device), total("freed")
    del first, second
    assert total("freed") - freed >= requested
    assert total("allocated") - allocated == requested
    remaining = module.memory_allocated(device)
    assert remaining <= in_use - requested
    assert module.max_memory_allocated(device) == peak
    module.reset_peak_memory_stats(device)
    assert torch.accelerator.memory_allocated(device) <= module.max_memory_allocated(device) <= remaining


def test_freed_memory_is_used_again(device):
    module = module_of(device)
    first = block(device, 3 * MIB)
    address = first.data_ptr()
    del first
    segments = module.memory_stats(device)["segment.all.allocated"]
    for _ in range(20):
        again = block(device, 3 * MIB)
        assert again.data_ptr() == address
        del again
    assert module.memory_stats(device)["segment.all.allocated"] == segments


def test_a_segment_is_split_and_joined_again(device):
    module = module_of(device)
    # In a pool of its own: blocks of the shared one fill the gaps
    # between what other tests have left.
    pool = module.MemPool()
    with module.use_mem_pool(pool, device):
        large = block(device, 1000)
        segments = module.memory_stats(device)["segment.all.current"]
        small = [block(device, 1000) for _ in range(100)]
    assert module.memory_stats(device)["segment.all.current"] == segments
    addresses = sorted(tensor.data_ptr() for tensor in [large, *small])
    assert {b - a for a, b in zip(addresses, addresses[1:], strict=False)} == {1024}
    for tensor in small[::2]:
        tensor.resize_(0)
    del tensor
    small.clear()
    del large
    with module.use_mem_pool(pool, device):
        joined = block(device, MIB)
    assert module.memory_stats(device)["segment.all.current"] == segments
    assert joined.data_ptr() == addresses[0]


def test_empty_cache_gives_memory_back(device):
    module = module_of(device)
    kept = block(device, 100)
    reserved = module.memory_reserved(device)
    for size in (100 * MIB, 30 * MIB, 5 * MIB):
        block(device, size)
    assert module.memory_reserved(device) > reserved
    module.empty_cache()
    assert module.memory_reserved(device) == reserved
    kept.fill_(3)
    assert kept.cpu().unique().tolist() == [3]
    torch.accelerator.empty_cache()


def test_contents_survive_neighbours(device):
    sizes = [17, 512, 513, 4096, 70_000, MIB - 1, MIB + 1, 3 * MIB, 11 * MIB]
    kept = [block(device, size).fill_(number) for number, size in enumerate(sizes)]
    for round_number in range(3):
        churn = [block(device, size).fill_(0xFF) for size in sizes]
        del churn
        assert [tensor.cpu().unique().tolist() for tensor in kept] == [[n] for n in range(len(sizes))], round_number


def test_a_block_of_a_side_stream_is_kept_for_the_current_one(device):
    module = module_of(device)
    side = torch.Stream(device)
    results = []
    for value in range(20):
        with module.stream(side):
            source = torch.full((1 << 16,), float(value), device=device)
        module.current_stream(device).wait_stream(side)
        for _ in range(5):
            busy = torch.zeros(1 << 16, device=device)
        results.append(source + busy)
        source.record_stream(module.current_stream(device))
        del source
        with module.stream(side):
            # Would take the block if it were free.
            torch.full((1 << 16,), -1.0, device=device)
    torch.accelerator.synchronize(device)
    assert [result.cpu().unique().tolist() for result in results] == [[value] for value in range(20)]


def test_a_dropped_block_recorded_on_a_stream_keeps_its_contents(device):
    module = module_of(device)
    side = torch.Stream(device)
    copies = []
    for value in range(20):
        source = torch.full((1 << 16,), float(value), device=device)
        side.wait_stream(module.current_stream(device))
        with module.stream(side):
            copies.append(source.clone())
        source.record_stream(side)
        del source
        torch.full((1 << 16,), -1.0, device=device)
    torch.accelerator.synchronize(device)
    assert [copy.cpu().unique().tolist() for copy in copies] == [[value] for value in range(20)]


def test_streams_have_pools_of_their_own(device):
    module = module_of(device)
    first = block(device, 1000)
    address = first.data_ptr()
    del first
    with module.stream(torch.Stream(device)):
        reused = block(device, 1000)
    assert reused.data_ptr() != address
    assert block(device, 1000).data_ptr() == address


def test_memory_info(device):
    free, total = module_of(device).mem_get_info(device)
    assert 0 <= free <= total
    properties = module_of(device).get_device_properties(device)
    assert total == properties.total_memory or properties.total_memory == 0


def test_running_out_of_memory_names_the_numbers_and_the_device_goes_on(device):
    module = module_of(device)
    kept = torch.arange(1000, device=device)
    cached = block(device, 40 * MIB)
    del cached
    ooms = module.memory_stats(device)["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(device, IMPOSSIBLE_BYTES)
    message = str(caught.value)
    assert "out of memory" in message and "ried to allocate" in message and str(device.index) in message
    assert module.memory_stats(device)["num_ooms"] == ooms + 1
    assert kept.sum().item() == 499_500
    assert block(device, 40 * MIB).fill_(1)[-1].item() == 1


def test_a_cache_in_the_way_is_given_back(device):
    module = module_of(device)
    module.empty_cache()
    free, _ = module.mem_get_info(device)  # other processes may use the device
    largest = min(free, module.get_device_properties(device).max_allocation or free)
    for eighths in (5, 6, 4, 7):
        cached = block(device, max(largest // 8 * eighths, MIB))
        del cached
    assert torch.ones(1000, device=device).sum().item() == 1000
    module.empty_cache()


def test_filling_a_device_and_recovering(device):
    module = module_of(device)
    chunk = module.get_device_properties(device).total_memory // 8
    blocks = []
    with pytest.raises(torch.OutOfMemoryError):
        for _ in range(9):
            blocks.append(block(device, chunk))
        # A driver that knows no total, or does not enforce it, has a limit all the same.
        blocks.append(block(device, IMPOSSIBLE_BYTES))
    blocks.clear()
    assert torch.ones(1000, device=device).sum().item() == 1000
    module.empty_cache()


def test_no_memory_is_left_behind_by_a_training_step(device):
    module = module_of(device)
    model = torch.nn.Linear(32, 32).to(device)
    ours = torch.randn(16, 32, device=device)

    def step():
        model.zero_grad(set_to_none=True)
        model(ours).square().mean().backward()
        model.zero_grad(set_to_none=True)

    step()
    torch.accelerator.synchronize(device)
    before = module.memory_allocated(device)
    for _ in range(10):
        step()
    torch.accelerator.synchronize(device)
    assert module.memory_allocated(device) == before


def test_an_exception_in_an_operator_leaves_no_memory_behind(device):
    module = module_of(device)
    ours = torch.ones(64, 64, device=device)
    before = module.memory_allocated(device)
    for _ in range(10):
        with pytest.raises(RuntimeError):
            torch.mm(ours, torch.ones(3, 3, device=device))
    gc.collect()
    assert module.memory_allocated(device) == before
