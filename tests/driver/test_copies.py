# SPDX-License-Identifier: BSD-3-Clause
"""Copies: between devices, host and peers, of every layout and type, blocking and not."""

from __future__ import annotations

import copy as copy_module

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .support import assert_same, module_of, pinned, pins

LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t(),
    "sliced": lambda t: t[1:5, 1:5],
    "stepped": lambda t: t[::2, ::3],
    "row": lambda t: t[3],
    "column": lambda t: t[:, 2],
    "expanded": lambda t: t[:1].expand(4, -1),
    "one element": lambda t: t[2, 2],
    "no element": lambda t: t[:0],
    "offset": lambda t: t.view(-1)[5:],
}


def base(dtype=torch.float32):
    return torch.arange(36).reshape(6, 6).to(dtype)


@pytest.mark.parametrize("non_blocking", [False, True], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_host_to_device_and_back(device, layout, non_blocking):
    host = LAYOUTS[layout](base())
    ours = host.to(device, non_blocking=non_blocking)
    assert_same(ours, host, device)
    back = torch.empty_like(host)
    back.copy_(ours, non_blocking=non_blocking)
    torch.accelerator.synchronize(device)
    assert torch.equal(back, host)


@pytest.mark.parametrize("source", LAYOUTS)
def test_a_view_on_the_device_comes_back(device, source):
    host = base()
    assert_same(LAYOUTS[source](host.to(device)), LAYOUTS[source](host), device)


@pytest.mark.parametrize("target", ["contiguous", "transposed", "sliced", "stepped", "row", "column", "offset"])
@pytest.mark.parametrize("source_place", ["host", "device"])
@pytest.mark.parametrize("target_place", ["host", "device"])
def test_writing_into_a_view(device, target, source_place, target_place):
    places = {"host": torch.device("cpu"), "device": device}
    whole, expected = torch.zeros(6, 6).to(places[target_place]), torch.zeros(6, 6)
    values = LAYOUTS[target](torch.rand(6, 6))
    LAYOUTS[target](whole).copy_(values.to(places[source_place]))
    LAYOUTS[target](expected).copy_(values)
    assert torch.equal(whole.cpu(), expected)


@pytest.mark.parametrize("to", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool, torch.complex64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "stepped"])
def test_copies_that_change_the_type(device, dtype, to, layout):
    host = LAYOUTS[layout](base(dtype))
    expected = host.to(to)
    assert_same(host.to(device).to(to), expected, device)
    assert_same(host.to(device, to), expected, device)
    assert torch.equal(host.to(device).to("cpu", to), expected)
    target = torch.empty(host.shape, dtype=to, device=device)
    assert_same(target.copy_(host), expected, device)
    assert_same(target.zero_().copy_(host.to(device)), expected, device)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_strided_copy_on_the_device(device, data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    steps = data.draw(st.lists(st.integers(1, 3), min_size=len(shape), max_size=len(shape)))
    dtype = data.draw(st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.float64, torch.complex128]))
    sizes = [size * step for size, step in zip(shape, steps, strict=True)]
    host = torch.arange(torch.tensor(sizes).prod().item()).reshape(sizes).to(dtype)
    slices = tuple(slice(None, None, step) for step in steps)
    ours, theirs = host.to(device)[slices].permute(order), host[slices].permute(order)
    assert_same(ours.clone(memory_format=torch.contiguous_format), theirs, device)
    target = torch.zeros(sizes, dtype=dtype, device=device)
    target[slices].permute(order).copy_(ours)
    expected = torch.zeros(sizes, dtype=dtype)
    expected[slices].permute(order).copy_(theirs)
    assert_same(target, expected, device)


def test_a_copy_broadcasts(device):
    target = torch.zeros(3, 4, device=device)
    target.copy_(torch.arange(4.0))
    assert target.tolist() == [[0, 1, 2, 3]] * 3
    target.copy_(torch.tensor([[1.0], [2.0], [3.0]], device=device))
    assert target.tolist() == [[1] * 4, [2] * 4, [3] * 4]
    target.copy_(torch.tensor(9.0))
    assert target.unique().tolist() == [9]


@pytest.mark.parametrize("place", ["host", "device"])
def test_a_copy_of_mismatched_sizes_is_refused(device, place):
    source = torch.ones(4, device=device if place == "device" else "cpu")
    target = torch.zeros(3, device=device)
    with pytest.raises(RuntimeError, match=r"size .* must match"):
        target.copy_(source)
    assert target.tolist() == [0, 0, 0]


def test_a_copy_onto_itself_and_of_overlapping_views(device):
    tensor = torch.arange(6.0, device=device)
    tensor.copy_(tensor)
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]
    assert tensor.flip(0).tolist() == [5, 4, 3, 2, 1, 0]
    tensor[:3].copy_(tensor[3:])
    assert tensor.tolist() == [3, 4, 5, 3, 4, 5]


def test_conjugate_and_negative_views(device):
    host = torch.tensor([1 + 2j, 3 - 4j])
    ours = host.to(device)
    assert ours.conj().is_conj()
    assert ours.conj().cpu().resolve_conj().tolist() == host.conj().resolve_conj().tolist()
    assert host.conj().to(device).resolve_conj().cpu().tolist() == [1 - 2j, 3 + 4j]
    assert ours.conj().imag.cpu().tolist() == [-2, 4]
    target = torch.zeros(2, dtype=torch.complex64, device=device)
    target.copy_(ours.conj())
    assert target.tolist() == [1 - 2j, 3 + 4j]
    target.conj().copy_(ours)
    assert target.tolist() == [1 - 2j, 3 + 4j]
    assert (ours.conj() * ours).real.tolist() == [5, 25]


def test_unpinned_host_memory_is_read_before_the_call_returns(device):
    host = torch.ones(1 << 16)
    ours = host.to(device, non_blocking=True)
    host.fill_(2)
    assert ours.sum().item() == 1 << 16


def test_host_values_given_to_queued_work_are_read_at_once(device):
    ours, scalar = torch.zeros(4, device=device), torch.tensor(3.0)
    ours.add_(scalar)
    scalar.fill_(100)
    ours[torch.tensor([1, 2])] = 7
    assert ours.tolist() == [3, 7, 7, 3]


def test_pinned_memory(device):
    host = torch.arange(1 << 12, dtype=torch.float32)
    assert not host.is_pinned()
    locked = host.pin_memory()
    assert locked.is_pinned() == locked[10:20].is_pinned() == pins()
    assert locked.device.type == "cpu" and torch.equal(locked, host)
    ours = locked.to(device, non_blocking=True)
    assert_same(ours, host, device)
    back = pinned(1 << 12)
    back.copy_(ours * 2, non_blocking=True)
    torch.accelerator.current_stream(device).synchronize()
    assert torch.equal(back, host * 2)
    assert not ours.is_pinned()
    with pytest.raises(RuntimeError, match="cannot pin|only dense CPU"):
        ours.pin_memory()


# What is copied of pinned memory of 6 by 8 elements, and to where.
CONVERSIONS = {
    "another type": (lambda host: host, lambda device: torch.zeros(6, 8, dtype=torch.float16, device=device)),
    "another layout": (lambda host: host, lambda device: torch.zeros(8, 6, device=device).t()),
    "a transposed source": (lambda host: host.t(), lambda device: torch.zeros(8, 6, device=device)),
    "gaps": (lambda host: host, lambda device: torch.zeros(6, 16, device=device)[:, ::2]),
    "a row for all": (lambda host: host[:1], lambda device: torch.zeros(6, 8, dtype=torch.int32, device=device)),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_pinned_memory_is_converted_behind_the_work_that_writes_it(device, conversion):
    """As on CUDA: neither way does the host read what a queued copy has yet to write."""
    if not pins():
        pytest.skip("capability: pinned memory")
    source, make = CONVERSIONS[conversion]
    values = torch.arange(48.0).reshape(6, 8)
    ours, there, host = values.to(device), make(device), pinned(6, 8).fill_(99)
    back = pinned(*there.shape, dtype=torch.float64).fill_(99)
    expected = make("cpu").copy_(source(values))
    module = module_of(device)
    module.synchronize()
    with module.device(device):
        module._sleep(20_000_000)
    host.copy_(ours, non_blocking=True)
    there.copy_(source(host), non_blocking=True)
    back.copy_(there, non_blocking=True)
    torch.accelerator.current_stream(device).synchronize()
    assert_same(there, expected, device)
    assert torch.equal(back, expected.double())


def test_a_pinned_block_is_not_reused_while_a_copy_reads_it(device):
    results = []
    for value in range(50):
        # Each block is free for Python as soon as it is dropped,
        # while its copy may still be queued.
        block = torch.full((1 << 14,), float(value)).pin_memory()
        results.append(block[1:].to(device, non_blocking=True))
        del block
    assert [result.unique().tolist() for result in results] == [[value] for value in range(50)]


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "stepped", "expanded", "no element"])
@pytest.mark.parametrize("non_blocking", [False, True], ids=["blocking", "non-blocking"])
def test_copies_between_peers(device, second_device, layout, non_blocking):
    host = LAYOUTS[layout](base())
    ours = LAYOUTS[layout](base().to(device))
    theirs = ours.to(second_device, non_blocking=non_blocking)
    assert_same(theirs, host, second_device)
    assert_same(theirs.to(device, torch.float64), host.double(), device)
    target = torch.zeros(tuple(reversed(host.shape)), device=second_device).permute(*reversed(range(host.ndim)))
    target.copy_(ours, non_blocking=non_blocking)
    assert_same(target, host, second_device)


def test_a_peer_copy_waits_for_work_on_both_devices(device, second_device):
    ours = torch.zeros(1 << 18, device=device)
    for _ in range(20):
        ours += 1
    theirs = torch.zeros(1 << 18, device=second_device)
    for _ in range(20):
        theirs += 100
    theirs.copy_(ours, non_blocking=True)
    ours.fill_(-1)
    assert theirs.unique().tolist() == [20]
    assert ours.unique().tolist() == [-1]


def test_deep_copies_and_clones(device):
    tensor = torch.arange(6.0, device=device).reshape(2, 3).t()
    for copy in (tensor.clone(), copy_module.deepcopy(tensor)):
        assert copy.data_ptr() != tensor.data_ptr()
        assert copy.stride() == tensor.stride()
        assert_same(copy, tensor.cpu(), device)
    assert tensor.to(device) is tensor


def test_storages(device):
    tensor = torch.arange(4.0, device=device)
    storage = tensor.untyped_storage()
    clone = storage.clone()
    assert clone.device == device and clone.data_ptr() != storage.data_ptr()
    assert storage.cpu().nbytes() == 16
    storage.resize_(32)
    assert storage.nbytes() == 32 and tensor.tolist() == [0, 1, 2, 3]
    clone.fill_(0)
    assert clone.tolist() == [0] * 16
