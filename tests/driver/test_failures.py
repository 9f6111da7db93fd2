# SPDX-License-Identifier: BSD-3-Clause
"""Failures of queued work follow the waits for it: each stream behind the work raises a failure once, no other does."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn import functional

from .support import module_of, queues_operators


@pytest.fixture(autouse=True)
def quiet(device):
    """Skip drivers whose operators fail at the call, and drain pending failures before and after the test."""
    if not queues_operators(device):
        pytest.skip("capability: operators that are queued, as generated kernels or by host_address and host_callback")
    raise_all()
    yield
    raise_all()


def raise_all():
    for index in range(torch.accelerator.device_count()):
        while failed(lambda index=index: torch.accelerator.synchronize(index)):
            pass


def failed(call):
    """Return whether the call raised the failure that `Failing` queued."""
    try:
        call()
    except IndexError:
        return True
    return False


class Failing:
    """Queues a lookup that fails, on a device's stream. A driver that runs work at once fails at the call."""

    def __init__(self, device, rows=5):
        self.weight = torch.ones(rows, 2, device=device)
        self.bad = torch.tensor([0, 99], device=device)
        torch.accelerator.synchronize(device)
        self.is_late = True

    def __call__(self, stream):
        result = torch.zeros(2, 2)
        with torch.get_device_module(self.weight.device).stream(stream):
            try:
                result = functional.embedding(self.bad, self.weight)
            except IndexError:
                self.is_late = False
        return result


def test_a_failure_follows_wait_stream(device):
    main, side = module_of(device).current_stream(), torch.Stream(device)
    fail = Failing(device)
    result = fail(side)
    main.wait_stream(side)
    assert failed(lambda: (result.sum() + 5).item()) == fail.is_late
    # Told on one, it is still news on the other, and on each but once.
    assert not failed(main.synchronize)
    assert failed(side.synchronize) == fail.is_late
    assert not failed(side.synchronize)
    assert not failed(main.synchronize)


@pytest.mark.parametrize("wait", ["cpu", "tolist", "nonzero", "copy_", "synchronize"])
def test_every_wait_behind_a_failure_raises_it(device, wait):
    main, side = module_of(device).current_stream(), torch.Stream(device)
    fail = Failing(device)
    good = torch.ones(3, device=device)
    fail(side)
    main.wait_stream(side)
    waits = {
        "cpu": good.cpu,
        "tolist": good.tolist,
        "nonzero": good.nonzero,
        "copy_": lambda: torch.empty(3).copy_(good),
        "synchronize": main.synchronize,
    }
    assert failed(waits[wait]) == fail.is_late
    assert not failed(waits[wait])


def test_a_failure_follows_events_from_stream_to_stream(device):
    module = module_of(device)
    streams = [torch.Stream(device) for _ in range(4)]
    fail = Failing(device)
    fail(streams[0])
    for before, after in zip(streams, streams[1:], strict=False):
        event = module.Event()
        event.record(before)
        after.wait_event(event)
        del event
    for stream in reversed(streams):
        assert failed(stream.synchronize) == fail.is_late
        assert not failed(stream.synchronize)


def test_a_failure_that_comes_after_the_wait_was_queued_follows_too(device):
    module = module_of(device)
    main, first, second = module.current_stream(), torch.Stream(device), torch.Stream(device)
    fail = Failing(device)
    late = module.Event()
    big = torch.ones(512, 512, device=device)
    first.wait_stream(main)
    with module.stream(first):
        for _ in range(5):
            big = big @ big * 1e-3  # the failure behind it comes when both waits have been queued
    fail(first)
    late.record(first)
    second.wait_event(late)
    main.wait_stream(second)
    assert failed(main.synchronize) == fail.is_late
    assert failed(second.synchronize) == fail.is_late
    assert failed(first.synchronize) == fail.is_late


def test_what_was_recorded_before_the_failure_does_not_carry_it(device):
    module = module_of(device)
    main, side, behind = module.current_stream(), torch.Stream(device), torch.Stream(device)
    fail = Failing(device)
    early, late = module.Event(), module.Event()
    early.record(side)
    main.wait_event(early)
    fail(side)
    late.record(side)
    behind.wait_event(late)
    assert failed(behind.synchronize) == fail.is_late  # it has failed by now
    assert not failed(main.synchronize)
    assert not failed(early.synchronize)
    assert failed(late.synchronize) == fail.is_late
    assert not failed(side.synchronize)


def test_an_event_raises_it_for_the_stream_that_recorded_it(device):
    module = module_of(device)
    main, side = module.current_stream(), torch.Stream(device)
    fail = Failing(device)
    fail(side)
    main.wait_stream(side)
    event = module.Event()
    event.record(main)
    assert failed(event.synchronize) == fail.is_late
    assert not failed(event.synchronize)
    assert not failed(main.synchronize)
    assert failed(side.synchronize) == fail.is_late


def test_a_failure_that_was_raised_is_not_handed_on(device):
    main, side = module_of(device).current_stream(), torch.Stream(device)
    fail = Failing(device)
    fail(side)
    assert failed(side.synchronize) == fail.is_late
    main.wait_stream(side)
    assert not failed(main.synchronize)


def test_a_stream_that_is_never_synchronised_hands_on_each_of_its_failures(device):
    main, side = module_of(device).current_stream(), torch.Stream(device)
    fail = Failing(device)
    for _ in range(20):
        fail(side)
        main.wait_stream(side)
        assert failed(main.synchronize) == fail.is_late
        assert not failed(main.synchronize)
        main.wait_stream(side)
        assert not failed(main.synchronize)
    assert failed(side.synchronize) == fail.is_late
    assert not failed(side.synchronize)


def test_waiting_for_the_device_raises_it_for_all_of_its_streams(device):
    module = module_of(device)
    main, side = module.current_stream(), torch.Stream(device)
    fail = Failing(device)
    fail(side)
    main.wait_stream(side)
    assert failed(module.synchronize) == fail.is_late
    for wait in (module.synchronize, main.synchronize, side.synchronize):
        assert not failed(wait)


def test_failures_of_two_streams_are_reported_one_a_wait(device):
    main, streams = module_of(device).current_stream(), [torch.Stream(device) for _ in range(2)]
    fail = Failing(device)
    for stream in streams:
        fail(stream)
        main.wait_stream(stream)
    assert failed(main.synchronize) == fail.is_late
    assert failed(main.synchronize) == fail.is_late
    assert not failed(main.synchronize)


def test_a_failure_follows_copies_between_devices(device, second_device):
    fail = Failing(device)
    result = fail(torch.accelerator.current_stream(device)).to(second_device)
    assert failed(lambda: (result + 1).sum().item()) == fail.is_late
    assert not failed(lambda: torch.accelerator.synchronize(second_device))
    assert failed(lambda: torch.accelerator.synchronize(device)) == fail.is_late


def test_a_failure_follows_from_device_to_device(device, second_device):
    fail = Failing(device)
    side, follower = torch.Stream(device), torch.Stream(second_device)
    fail(side)
    follower.wait_stream(side)
    assert failed(lambda: torch.accelerator.synchronize(second_device)) == fail.is_late
    assert not failed(follower.synchronize)
    assert failed(side.synchronize) == fail.is_late


def test_record_stream_and_frees_hide_nothing(device):
    module = module_of(device)
    main, side = module.current_stream(), torch.Stream(device)
    fail = Failing(device)
    for _ in range(3):
        data = torch.ones(1 << 16, device=device)
        side.wait_stream(main)
        with module.stream(side):
            data.mul_(2)
        data.record_stream(side)
        result = fail(side)
        result.record_stream(main) if fail.is_late else None
        del data
        torch.ones(1 << 16, device=device).add_(1)  # settles what was freed, if it can
        main.wait_stream(side)
        del result
        assert failed(main.synchronize) == fail.is_late
    assert failed(side.synchronize) == fail.is_late


def test_a_failure_of_a_replayed_graph_follows_its_stream(device):
    module = module_of(device)
    main, side = module.current_stream(), torch.Stream(device)
    weight, index = torch.ones(5, 2, device=device), torch.tensor([0, 1], device=device)
    bad = torch.tensor([0, 99], device=device)
    functional.embedding(index, weight)
    module.synchronize()
    graph = module.Graph()
    with module.graph(graph):
        result = functional.embedding(index, weight)
    index.copy_(bad)
    module.synchronize()
    with module.stream(side):
        is_late = not failed(graph.replay)
    main.wait_stream(side)
    assert failed(lambda: result.sum().item()) == is_late
    assert failed(side.synchronize) == is_late
    assert not failed(module.synchronize)


def test_threads_that_queue_on_one_stream_each_hear_of_a_failure(device):
    side = torch.Stream(device)
    fail = Failing(device)
    heard = []
    barrier = threading.Barrier(4)

    def work():
        own = torch.Stream(device)
        for _ in range(20):
            barrier.wait()
            fail(side)
            own.wait_stream(side)
            heard.append(failed(own.synchronize))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == [fail.is_late] * 80
