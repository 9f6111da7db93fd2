# SPDX-License-Identifier: BSD-3-Clause
"""Storages: their size, copies, foreign memory, registered host memory, and sharing between processes."""

from __future__ import annotations

import gc
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch

import torch_outboard

from .support import assert_same, has_entry, module_of, pinned

MIB = 1 << 20


# ---- Size ----


def test_a_storage_that_is_freed_and_regrown_serves_its_tensors(device):
    module = module_of(device)
    before = module.memory_allocated(device)
    tensor = torch.arange(1000.0, device=device)
    storage = tensor.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0 and module.memory_allocated(device) == before
    assert tensor.shape == (1000,)
    storage.resize_(4000)
    tensor.copy_(torch.arange(1000.0))
    assert_same(tensor, torch.arange(1000.0), device)
    assert module.memory_allocated(device) == before + 4096


@pytest.mark.parametrize("size", [4, 2000, 4000, 4096, 3 * MIB])
def test_resizing_keeps_what_fits(device, size):
    tensor = torch.arange(1000, dtype=torch.int32, device=device)
    tensor.untyped_storage().resize_(size)
    assert tensor.untyped_storage().nbytes() == size
    kept = min(size, 4000) // 4
    view = torch.empty(0, dtype=torch.int32, device=device).set_(tensor.untyped_storage(), 0, (kept,), (1,))
    assert_same(view, torch.arange(kept, dtype=torch.int32), device)


def test_a_tensor_grows_in_place(device):
    tensor = torch.arange(6.0, device=device)
    tensor.resize_(3, 4)
    assert tensor.shape == (3, 4) and tensor.flatten()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    tensor.resize_(2)
    assert tensor.tolist() == [0, 1]


def test_a_resize_on_another_stream_sees_the_work_before_it(device):
    module = module_of(device)
    side = torch.Stream(device)
    for value in range(20):
        tensor = torch.full((1 << 14,), float(value), device=device)
        side.wait_stream(module.current_stream(device))
        with module.stream(side):
            tensor.untyped_storage().resize_(1 << 17)
        torch.full((1 << 14,), -1.0, device=device)  # would take the old block if it were free
        side.synchronize()
        assert tensor.unique().tolist() == [value]


def test_a_size_that_no_device_has_leaves_the_storage_as_it_was(device):
    tensor = torch.arange(10.0, device=device)
    with pytest.raises(torch.OutOfMemoryError):
        tensor.untyped_storage().resize_(1 << 52)
    assert tensor.tolist() == list(range(10))


# ---- Copies ----


def test_storages_are_copied_within_and_across_devices(device):
    storage = torch.arange(100, dtype=torch.uint8, device=device).untyped_storage()
    clone = storage.clone()
    assert clone.device == device and clone.data_ptr() != storage.data_ptr()
    assert storage.cpu().tolist() == clone.cpu().tolist() == list(range(100))
    fresh = torch.UntypedStorage(100, device=device)
    fresh.copy_(torch.arange(100, dtype=torch.uint8).untyped_storage())
    assert fresh.tolist() == list(range(100))
    back = torch.UntypedStorage(100)
    back.copy_(fresh)
    assert back.tolist() == list(range(100))
    fresh.fill_(7)
    assert set(fresh.tolist()) == {7}
    assert torch.UntypedStorage(0, device=device).clone().nbytes() == 0


def test_a_storage_goes_to_the_second_device(device, second_device):
    storage = torch.arange(100, dtype=torch.uint8, device=device).untyped_storage()
    copy = torch.UntypedStorage(100, device=second_device)
    copy.copy_(storage)
    assert copy.device == second_device and copy.tolist() == list(range(100))


# ---- Foreign memory ----


def test_a_tensor_over_memory_of_the_allocator_finds_its_device(device):
    module = module_of(device)
    owner = torch.arange(12.0, device=device)
    ours = module.memory.from_blob(owner.data_ptr() + 8, (2, 3), (4, 2), torch.float32)
    assert ours.device == device
    assert_same(ours, torch.arange(2.0, 14.0)[:11].as_strided((2, 3), (4, 2)), device)
    ours.zero_()
    assert owner.tolist() == [0, 1, 0, 3, 0, 5, 0, 7, 0, 9, 0, 11]
    assert (ours + 1).sum().item() == 6
    assert module.memory.from_blob(owner.data_ptr(), (0,)).numel() == 0


def test_a_tensor_over_raw_memory_on_the_second_device(device, second_device):
    module = module_of(device)
    address = module.memory.caching_allocator_alloc(4096, second_device)
    ours = module.memory.from_blob(address, (1024,), dtype=torch.int32)
    assert ours.device == second_device
    ours.fill_(3)
    assert ours.sum().item() == 3072
    torch.accelerator.synchronize(second_device)
    del ours
    module.memory.caching_allocator_delete(address)


def test_foreign_memory_needs_its_device(device):
    module = module_of(device)
    host = torch.ones(4)
    with pytest.raises(ValueError, match="for foreign memory, pass its device"):
        module.memory.from_blob(host.data_ptr(), (4,))
    with pytest.raises(ValueError, match="no memory at the address 0"):
        module.memory.from_blob(0, (4,), device=device)
    with pytest.raises(ValueError, match="one non-negative number per dimension"):
        module.memory.from_blob(host.data_ptr(), (4,), (1, 1), device=device)
    with pytest.raises(torch.AcceleratorError, match="out of range"):
        module.memory.from_blob(4096, (4,), device=999 % 100)


def test_foreign_memory_keeps_its_owner_and_its_size(device):
    module = module_of(device)

    class Owner:
        is_alive = True

        def __init__(self):
            self.memory = torch.zeros(1000, device=device)

        def __del__(self):
            Owner.is_alive = False

    owner = Owner()
    ours = module.memory.from_blob(owner.memory.data_ptr(), (1000,), device=device, owner=owner)
    view = ours[5:]
    del owner, ours
    gc.collect()
    assert Owner.is_alive
    with pytest.raises(RuntimeError, match="not resizable"):
        view.resize_(10_000)
    view.record_stream(torch.Stream(device))  # ignored, as with CUDA
    del view
    gc.collect()
    assert not Owner.is_alive


# ---- Registered host memory ----


def test_host_memory_is_pinned_where_it_lies(device):
    module = module_of(device)
    host = torch.arange(10_000.0)
    if not has_entry("host_register"):
        with pytest.raises(NotImplementedError, match="host_register"):
            module.memory.host_register(host)
        return
    view = host[100:200]
    try:
        module.memory.host_register(view)
    except NotImplementedError:
        pytest.skip("capability: host_register, which the driver has and does not do")
    assert host.is_pinned() and view.is_pinned() and not torch.ones(4).is_pinned()
    ours = host.to(device, non_blocking=True)
    assert_same(ours, host, device)
    host.zero_()
    host.copy_(ours + 1, non_blocking=True)
    module.synchronize(device)
    assert host[-1].item() == 10_000
    with pytest.raises(ValueError, match="already pinned"):
        module.memory.host_register(host)
    address = host.untyped_storage().data_ptr()
    host.copy_(ours, non_blocking=True)
    module.memory.host_unregister(host)  # waits for that copy
    assert host[-1].item() == 9999 and host.untyped_storage().data_ptr() == address
    assert not host.is_pinned()
    with pytest.raises(ValueError, match="not registered"):
        module.memory.host_unregister(host)
    module.memory.host_register(host)
    module.memory.host_unregister(view)


def test_what_cannot_be_registered_is_refused(device):
    module = module_of(device)
    with pytest.raises(ValueError, match="CPU tensor"):
        module.memory.host_register(torch.ones(3, device=device))
    if has_entry("host_register"):
        with pytest.raises(ValueError, match="0 bytes"):
            module.memory.host_register(torch.empty(0))
        ours = pinned(10)
        if ours.is_pinned():
            with pytest.raises(ValueError, match="already pinned"):
                module.memory.host_register(ours)
        with pytest.raises(ValueError, match="not registered"):
            module.memory.host_unregister(ours)


# ---- Sharing ----


def test_two_processes_share_tensors(device, driver_name, run_python):
    driver = torch_outboard.attached_driver()
    if "ipc" not in driver.options:
        pytest.skip("capability: the driver has no option `ipc`")
    script = Path(__file__).with_name("share.py")
    code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    answer = run_python(code, str(script), driver_name)
    assert answer.stdout.splitlines()[-1] == "shared"


def test_a_driver_that_exports_nothing_says_so(device):
    try:
        ForkingPickler.dumps(torch.ones(3, device=device))
    except NotImplementedError as error:
        assert "ipc_export" in str(error)
    else:
        assert has_entry("ipc_export")
        return
    # Nothing is left behind, and the CPU's storages go as ever.
    module_of(device).ipc_collect()
    host = ForkingPickler.loads(ForkingPickler.dumps(torch.ones(3)))
    assert host.tolist() == [1, 1, 1]


def test_events_are_not_shared_and_say_so(device):
    with pytest.raises((NotImplementedError, RuntimeError), match="(?i)interprocess|ipc|another process"):
        event = torch.Event(device, interprocess=True)
        event.record()
        event.ipc_handle()


def test_torch_has_no_hook_of_its_own():
    # Once torch has one, it should replace _compat/sharing.py.
    from torch_outboard._compat.sharing import needs_share_storages

    assert needs_share_storages()
