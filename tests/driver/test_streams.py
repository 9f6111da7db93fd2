# SPDX-License-Identifier: BSD-3-Clause
"""Streams, events and the order of work."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from .support import module_of, pinned

POOL_SIZE = 32
ELEMENTS = 1 << 16


def count_up(tensor, times):
    for _ in range(times):
        tensor.add_(1)


def keep_busy(device):
    """Queue some milliseconds of work on the current stream, so that a missing wait reads too early."""
    block = torch.ones(1 << 22, device=device)
    for _ in range(4):
        block.exp_().log_()


def test_streams_come_from_a_pool_in_turn(device):
    streams = [torch.Stream(device) for _ in range(70)]
    assert {stream.device for stream in streams} == {device}
    ids = [stream.stream_id for stream in streams]
    assert len(set(ids)) == POOL_SIZE
    assert ids[:-POOL_SIZE] == ids[POOL_SIZE:]
    assert streams[0] == streams[POOL_SIZE] and streams[0] != streams[1]
    module = module_of(device)
    assert module.default_stream(device).stream_id not in ids


def test_every_stream_of_the_pool_works(device):
    module = module_of(device)
    results = []
    for number in range(POOL_SIZE):
        with module.stream(torch.Stream(device)):
            results.append(torch.full((8,), float(number), device=device) * 2)
    torch.accelerator.synchronize(device)
    assert [result.tolist() for result in results] == [[2.0 * number] * 8 for number in range(POOL_SIZE)]


def test_the_current_stream_is_set_and_restored(device):
    module = module_of(device)
    default = module.current_stream(device)
    assert default == module.default_stream(device)
    stream = torch.Stream(device)
    with module.stream(stream):
        assert module.current_stream(device) == stream == torch.accelerator.current_stream(device)
        with pytest.raises(KeyError), module.stream(torch.Stream(device)):
            raise KeyError
        assert module.current_stream(device) == stream
    assert module.current_stream(device) == default
    module.set_stream(stream)
    assert module.current_stream(device) == stream
    module.set_stream(default)
    with stream:
        assert module.current_stream(device) == stream
    assert module.current_stream(device) == default


def test_the_current_stream_belongs_to_a_thread(device):
    module = module_of(device)
    seen = []
    with module.stream(torch.Stream(device)):
        thread = threading.Thread(target=lambda: seen.append(module.current_stream(device)))
        thread.start()
        thread.join()
    assert seen == [module.default_stream(device)]


def test_module_classes_are_torchs(device):
    module = module_of(device)
    stream = module.Stream(device=device)
    assert isinstance(stream, torch.Stream) and stream.device == device
    assert isinstance(module.Event(), torch.Event)


def test_wait_stream_orders_work(device):
    module = module_of(device)
    first, second = torch.Stream(device), torch.Stream(device)
    tensor = torch.zeros(ELEMENTS, device=device)
    first.wait_stream(module.current_stream(device))
    with module.stream(first):
        keep_busy(device)
        count_up(tensor, 30)
    second.wait_stream(first)
    with module.stream(second):
        copy = tensor.clone()
    tensor.record_stream(first)
    module.current_stream(device).wait_stream(second)
    assert copy.cpu().unique().tolist() == [30]


def test_an_event_stands_for_its_latest_record_at_the_time_of_the_wait(device):
    module = module_of(device)
    first, second = torch.Stream(device), torch.Stream(device)
    tensor = torch.zeros(ELEMENTS, device=device)
    torch.accelerator.synchronize(device)
    event = torch.Event(device)
    with module.stream(first):
        keep_busy(device)
        count_up(tensor, 10)
        event.record(first)
    with module.stream(second):
        event.wait(second)
        seen = tensor.clone()
        event.record(second)
    with module.stream(first):
        # Re-recorded while the first wait may be pending; and this wait protects the clone.
        event.wait(first)
        count_up(tensor, 10)
    torch.accelerator.synchronize(device)
    assert seen.cpu().unique().tolist() == [10]
    assert tensor.cpu().unique().tolist() == [20]


def test_an_event_dropped_after_the_wait_still_binds(device):
    module = module_of(device)
    first, second = torch.Stream(device), torch.Stream(device)
    tensor = torch.zeros(ELEMENTS, device=device)
    torch.accelerator.synchronize(device)
    with module.stream(first):
        keep_busy(device)
        count_up(tensor, 20)
        event = first.record_event()
    second.wait_event(event)
    del event
    with module.stream(second):
        seen = tensor.clone()
    second.synchronize()
    assert seen.cpu().unique().tolist() == [20]


def test_queries_and_synchronisation(device):
    stream = torch.Stream(device)
    event = torch.Event(device)
    assert event.query()
    event.synchronize()
    with module_of(device).stream(stream):
        tensor = torch.zeros(ELEMENTS, device=device)
        keep_busy(device)
        count_up(tensor, 20)
        event.record()
    event.synchronize()
    assert event.query()
    stream.synchronize()
    assert stream.query()
    assert tensor[0].item() == 20


def test_many_events_on_many_streams_form_a_chain(device):
    module = module_of(device)
    tensor = torch.zeros(1 << 12, device=device)
    torch.accelerator.synchronize(device)
    previous = None
    for _ in range(100):
        stream = torch.Stream(device)
        if previous is not None:
            stream.wait_event(previous)
        with module.stream(stream):
            if previous is None:
                keep_busy(device)
            tensor.mul_(1.0).add_(1)
        previous = stream.record_event()
    previous.synchronize()
    assert tensor.cpu().unique().tolist() == [100]


def test_events_across_devices(device, second_device):
    module = module_of(device)
    tensor = torch.zeros(ELEMENTS, device=device)
    count_up(tensor, 30)
    event = module.current_stream(device).record_event()
    stream = torch.Stream(second_device)
    stream.wait_event(event)
    with module.stream(stream):
        copy = tensor.to(second_device, non_blocking=True)
    stream.synchronize()
    assert copy.cpu().unique().tolist() == [30]


def test_a_stream_of_another_device_sets_that_device(device, second_device):
    module = module_of(device)
    with module.stream(torch.Stream(second_device)):
        assert torch.accelerator.current_device_index() == second_device.index
        assert torch.empty(1, device=device.type).device == second_device
    assert torch.accelerator.current_device_index() == device.index


def test_timing(device):
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    try:
        began = time.perf_counter()
        start.record()
        keep_busy(device)
        end.record()
        end.synchronize()
        longest = 1e3 * (time.perf_counter() - began)
        elapsed = start.elapsed_time(end)
    except NotImplementedError as error:
        # A driver without clocks says which entry it lacks.
        assert "event_elapsed" in str(error) or "event_timestamp" in str(error)
    else:
        # Milliseconds; one more, since two clocks are compared.
        assert 0 < elapsed < longest + 1


def test_timing_of_events_made_without_it_is_refused(device):
    start, end = torch.Event(device), torch.Event(device)
    start.record()
    end.record()
    end.synchronize()
    with pytest.raises((RuntimeError, ValueError), match="(?i)timing"):
        start.elapsed_time(end)


def test_elapsed_time_of_an_event_never_recorded_is_refused(device):
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    start.record()
    with pytest.raises((RuntimeError, ValueError), match="(?i)record"):
        start.elapsed_time(end)


def test_priorities_are_accepted(device):
    module = module_of(device)
    for priority in (0, -1):
        stream = module.Stream(device=device, priority=priority)
        with module.stream(stream):
            assert (torch.ones(3, device=device) + 1).tolist() == [2, 2, 2]


def test_synchronize_waits_for_every_stream(device):
    module = module_of(device)
    tensors = []
    for _ in range(4):
        with module.stream(torch.Stream(device)):
            tensors.append(torch.zeros(ELEMENTS, device=device))
            count_up(tensors[-1], 20)
    module.synchronize(device)
    locked = [pinned(ELEMENTS) for _ in tensors]
    for target, source in zip(locked, tensors, strict=True):
        target.copy_(source, non_blocking=True)
    module.synchronize()
    assert [target.cpu().unique().tolist() for target in locked] == [[20]] * 4


def test_threads_use_the_device_at_once(device):
    failures = []

    def work(number):
        with module_of(device).stream(torch.Stream(device)):
            tensor = torch.full((1 << 10,), float(number), device=device)
            for _ in range(50):
                tensor = tensor + 1
            if tensor.cpu().unique().tolist() != [number + 50]:
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_error_within_a_stream_restores_the_one_before(device):
    module = module_of(device)
    before = module.current_stream(device)
    for context in (torch.Stream(device), module.stream(module.Stream()), module.StreamContext(module.Stream())):
        with pytest.raises(RuntimeError, match="(?i)size|shape|match"), context:
            torch.ones(3, device=device) + torch.ones(4, device=device)
        assert module.current_stream(device) == before
    assert (torch.ones(2, device=device) + 1).tolist() == [2, 2]


def test_a_thousand_threads_with_a_stream_each(device):
    module = module_of(device)
    results = [None] * 1000
    start = threading.Barrier(50)

    def work(number):
        start.wait()
        with module.stream(module.Stream()) as stream:
            event = module.Event()
            value = torch.full((16,), float(number), device=device) + 1
            event.record()
            assert module.current_stream(device) == (stream or module.current_stream(device))
        event.synchronize()
        results[number] = value.tolist()

    for first in range(0, 1000, 50):
        threads = [threading.Thread(target=work, args=(first + index,)) for index in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [[number + 1.0] * 16 for number in range(1000)]
