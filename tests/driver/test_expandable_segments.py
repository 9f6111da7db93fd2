# SPDX-License-Identifier: BSD-3-Clause
"""Segments that grow, if the driver maps memory."""

from __future__ import annotations

import gc
import random

import pytest
import torch

from .support import maps_memory, module_of

MIB = 1 << 20


@pytest.fixture(autouse=True)
def expandable(device):
    gc.collect()
    torch.accelerator.synchronize(device)
    module_of(device).empty_cache()
    if not maps_memory(device):
        pytest.skip("capability: mem_reserve and mem_map. The driver maps no memory")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    yield
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    gc.collect()
    torch.accelerator.synchronize(device)
    module_of(device).empty_cache()


@pytest.fixture
def stream(device):
    """Return a fresh stream, whose pools hold nothing of other tests."""
    with module_of(device).stream(torch.Stream(device)):
        yield


def block(device, size):
    return torch.empty(size, dtype=torch.uint8, device=device)


def extremes(tensor):
    """Return the least and the greatest element, without sorting megabytes, as `unique` would."""
    return tuple(value.item() for value in torch.aminmax(tensor))


def test_a_segment_grows_and_shrinks(device, stream):
    module = module_of(device)
    before = module.memory_reserved(device)
    segments = module.memory_stats(device)["segment.all.current"]
    tensors = [block(device, 15 * MIB).fill_(number) for number in range(8)]
    assert module.memory_stats(device)["segment.all.current"] == segments + 1
    addresses = [tensor.data_ptr() for tensor in tensors]
    assert [b - a for a, b in zip(addresses, addresses[1:], strict=False)] == [15 * MIB] * 7
    assert module.memory_reserved(device) - before == 120 * MIB
    assert [extremes(tensor) for tensor in tensors] == [(number, number) for number in range(8)]
    del tensors[2:5]
    module.empty_cache()  # the pages that are free whole, in the middle too
    assert module.memory_reserved(device) - before in range(75 * MIB, 80 * MIB)
    filling = block(device, 44 * MIB).fill_(9)
    assert filling.data_ptr() == addresses[2]
    assert [extremes(tensor) for tensor in tensors] == [(number, number) for number in (0, 1, 5, 6, 7)]
    assert extremes(filling) == (9, 9)
    del tensors, filling
    torch.accelerator.synchronize(device)
    module.empty_cache()
    assert module.memory_reserved(device) == before
    assert module.memory_stats(device)["segment.all.current"] == segments


def test_small_blocks_share_pages(device, stream):
    module = module_of(device)
    before = module.memory_reserved(device)
    tensors = [torch.full((1000,), float(number), device=device) for number in range(2000)]
    assert module.memory_reserved(device) - before == 8 * MIB
    assert all(tensor[0].item() == tensor[-1].item() == number for number, tensor in enumerate(tensors))


def test_running_out_of_memory_gives_pages_back(device, stream):
    module = module_of(device)
    total = module.get_device_properties(device).total_memory
    module.set_per_process_memory_fraction((module.memory_reserved(device) + 130 * MIB) / total, device)
    try:
        tensors = [block(device, 20 * MIB).fill_(number) for number in range(6)]
        del tensors[::2]
        with pytest.raises(torch.OutOfMemoryError):
            block(device, 80 * MIB)
        large = block(device, 60 * MIB).fill_(77)
        assert extremes(large) == (77, 77)
        assert [extremes(tensor) for tensor in tensors] == [(1, 1), (3, 3), (5, 5)]
    finally:
        module.set_per_process_memory_fraction(1.0, device)


def test_random_sizes_keep_their_contents(device, stream):
    module = module_of(device)
    draw = random.Random(7)
    live = {}
    for step in range(600):
        if live and draw.random() < 0.5:
            key = draw.choice(list(live))
            assert extremes(live.pop(key)) == (key % 251,) * 2, key
        else:
            live[step] = block(device, draw.choice([100, 5000, 300_000, 2 * MIB, 5 * MIB])).fill_(step % 251)
        if step % 97 == 0:
            module.empty_cache()
        stats = module.memory_stats(device)
        assert stats["reserved_bytes.all.current"] >= stats["active_bytes.all.current"]
    assert all(extremes(tensor) == (key % 251,) * 2 for key, tensor in live.items())


def stuck_bytes(device, expandable):
    """Return the unused bytes that stay reserved after `empty_cache`, in a training run of varying sequence lengths."""
    module = module_of(device)
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{expandable}")
    module.empty_cache()
    draw = random.Random(3)
    kept = []
    with module.stream(torch.Stream(device)):
        for step in range(60):
            length = draw.randrange(500, 3000)
            activations = []
            for scale in (1, 3, 4, 2, 1):
                activations.append(block(device, length * 1024 * scale))
                if (step + scale) % 8 == 0:
                    kept.append(block(device, length * 1024))  # a cache that stays
            del activations
        module.empty_cache()
        stats = module.memory_stats(device)
        return stats["inactive_split_bytes.all.current"]


def test_less_memory_is_stuck_than_with_fixed_segments(device):
    plain = stuck_bytes(device, False)
    assert 2 * stuck_bytes(device, True) <= plain
