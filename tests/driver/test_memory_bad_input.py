# SPDX-License-Identifier: BSD-3-Clause
"""Users' errors with memory.

native/test_allocator.cpp tests drivers' errors, double frees, and frees after the device closed.
unit/test_memory_command.py tests corrupt snapshots, and test_storage.py and test_memory_limits.py test foreign
addresses.
"""

from __future__ import annotations

import threading

import pytest
import torch

from .support import module_of

# Unknown keys torch lets pass, since they may be another device's.
WRONG_SETTINGS = [
    ("max_split_size_mb", "ConfigTokenizer|max_split_size_mb"),
    ("expandable_segments:perhaps", "perhaps"),
    ("garbage_collection_threshold:7", "garbage_collect"),
]


@pytest.mark.parametrize(("setting", "message"), WRONG_SETTINGS)
def test_wrong_settings_are_torchs_own_error(device, setting, message):
    # What PYTORCH_ALLOC_CONF goes through as well.
    with pytest.raises((RuntimeError, ValueError), match=message):
        torch._C._accelerator_setAllocatorSettings(setting)
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    assert torch.ones(10, device=device).sum().item() == 10


def test_a_request_of_nothing_takes_nothing(device):
    module = module_of(device)
    before = module.memory_stats(device)["allocation.all.allocated"]
    nothing = torch.empty(0, device=device)
    assert nothing.data_ptr() == 0 and nothing.untyped_storage().nbytes() == 0
    assert module.memory_stats(device)["allocation.all.allocated"] == before
    nothing.record_stream(torch.Stream(device))
    assert module.caching_allocator_alloc(0, device) == 0


@pytest.mark.parametrize("size", [1 << 52, (1 << 62) - 1])
def test_a_request_above_the_device_is_out_of_memory_at_once(device, size):
    module = module_of(device)
    kept = torch.ones(1000, device=device)
    reserved = module.memory_reserved(device)
    with pytest.raises(torch.OutOfMemoryError, match="ried to allocate"):
        torch.empty(size, dtype=torch.uint8, device=device)
    assert module.memory_reserved(device) <= reserved
    assert kept.sum().item() == 1000


def test_memory_is_freed_by_another_thread(device):
    module = module_of(device)
    before = module.memory_allocated(device)
    tensors = [torch.full((size,), 1.0, device=device) for size in (10, 100_000, 3_000_000)]
    side = torch.Stream(device)
    tensors[1].record_stream(side)
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    assert module.memory_allocated(device) == before
    assert torch.ones(100_000, device=device).sum().item() == 100_000


def test_a_negative_size_is_refused(device):
    with pytest.raises(ValueError, match="at least 0"):
        module_of(device).caching_allocator_alloc(-1, device)
    with pytest.raises(RuntimeError, match="negative"):
        torch.empty(-1, device=device)
    with pytest.raises((RuntimeError, ValueError), match="negative"):
        torch.empty(10, device=device).untyped_storage().resize_(-5)
