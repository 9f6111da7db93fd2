# SPDX-License-Identifier: BSD-3-Clause
"""Streams and events of the wrong device, or of none, are refused by name and change nothing."""

from __future__ import annotations

import pytest
import torch

from .support import module_of


def test_an_event_belongs_to_the_device_of_its_first_record(device, second_device):
    module = module_of(device)
    event = torch.Event(device)
    event.record(module.current_stream(device))
    for record in (event.record, lambda stream: stream.record_event(event)):
        with pytest.raises((RuntimeError, ValueError), match="does not match recording stream's device"):
            record(module.current_stream(second_device))
    # It is as it was.
    event.synchronize()
    event.record(module.current_stream(device))
    assert event.device == device


def test_elapsed_time_across_devices_is_refused(device, second_device):
    module = module_of(device)
    events = []
    for place in (device, second_device):
        event = torch.Event(place, enable_timing=True)
        event.record(module.current_stream(place))
        event.synchronize()
        events.append(event)
    for first, second in (events, events[::-1]):
        with pytest.raises((RuntimeError, ValueError), match="on the same device"):
            first.elapsed_time(second)


def test_what_is_no_stream_is_refused(device):
    module = module_of(device)
    before = module.current_stream(device)
    for wrong in (3, "stream", torch.cpu.current_stream()):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            module.set_stream(wrong)
    with pytest.raises(ValueError, match="there is no stream with id 123456"):
        module._set_stream_by_id(123456, device.index, before.device_type)
    assert module.current_stream(device) == before


def test_a_stream_of_a_device_that_is_not_there(device):
    module = module_of(device)
    for wrong in (module.device_count(), 63, 100):
        with pytest.raises(torch.AcceleratorError, match="out of range"):
            torch.Stream(torch.device(device.type, wrong))
    assert module.current_device() == device.index


def test_a_dropped_stream_and_event_are_not_missed(device):
    """No object of the driver is destroyed under queued work, whoever holds the Python objects."""
    module = module_of(device)
    x = torch.zeros(1 << 12, dtype=torch.int64, device=device)
    torch.accelerator.synchronize(device)
    for _ in range(100):
        stream = module.Stream(device)
        stream.wait_stream(module.current_stream(device))
        with module.stream(stream):
            x.add_(1)
        module.current_stream(device).wait_event(stream.record_event())
        del stream
    assert x.unique().tolist() == [100]
