# SPDX-License-Identifier: BSD-3-Clause
"""After an entry reports a lost device, no entry is called for this device."""

from __future__ import annotations

import pytest


def test_every_later_use_raises_the_first_cause(run_python):
    run_python(
        """
import pytest, torch, torch_outboard
from torch_outboard import _C
torch_outboard.attach("sim", devices=2, fault="copy_async:3:DEVICE_LOST")
ours, other = torch.ones(4).to("sim:0"), torch.ones(4, device="sim:1")
side, event, done = torch.sim.Stream(0), torch.sim.Event(), torch.sim.Event()
external = torch.sim.get_stream_from_external(torch.sim.Stream(0).native_handle, 0)
with torch.sim.stream(side):
    ours.add_(1)
done.record(side)
event.record()
torch.sim.synchronize()
pinned = torch.ones(4).pin_memory()
graph = torch.sim.Graph()
with torch.sim.graph(graph):
    ours.add_(1)
torch.ones(4).to("sim:0")
with pytest.raises(torch.AcceleratorError, match="copy_async") as first:
    torch.ones(4).to("sim:0")
uses = {
    "copy": lambda: ours.copy_(torch.ones(4)),
    "fill": lambda: ours.fill_(3.0),
    "zero": lambda: ours.zero_(),
    "pinned copy": lambda: ours.copy_(pinned, non_blocking=True),
    "copy within": lambda: ours[:2].copy_(ours[2:]),
    "copy from": lambda: other.copy_(ours),
    "copy to": lambda: ours.copy_(other),
    "operator": lambda: ours + 1,
    "allocation": lambda: torch.empty(1 << 24, device="sim:0"),
    "record": lambda: torch.sim.Event().record(),
    "record again": lambda: event.record(),
    "event query": lambda: event.query(),
    "event wait": lambda: event.synchronize(),
    "wait for an event": lambda: torch.sim.current_stream(1).wait_event(event),
    "wait on a stream of it": lambda: side.wait_event(event),
    "stream query": lambda: side.query(),
    "stream wait": lambda: side.synchronize(),
    "external stream": lambda: external.synchronize(),
    "external query": lambda: external.query(),
    "external record": lambda: torch.sim.Event().record(external),
    "unused stream": lambda: torch.sim.Stream(0).synchronize(),
    "replay": graph.replay,
    "item": lambda: ours[0].item(),
    "synchronize": lambda: torch.sim.synchronize(0),
    "handle": lambda: _C.stream_handle(0, side.stream_id),
}
for name, use in uses.items():
    try:
        use()
    except torch.AcceleratorError as error:
        assert "The first cause: driver 'sim': copy_async on device 0 failed with DEVICE_LOST" in str(error), name
    else:
        raise AssertionError(f"{name} raised nothing")
assert (other + 1).tolist() == [2] * 4
torch.sim.synchronize(1)
assert torch.ones(2).sum() == 2
"""
    )


def test_no_entry_is_called_for_it(run_python):
    run_python(
        """
import pytest, torch, torch_outboard
from torch_outboard import DriverError, Status
from unit.toys import Toy

class Losing(Toy):
    is_lost = False
    def __init__(self, **options):
        super().__init__(**options)
        self.calls = []
    def stream_synchronize(self, device, stream):
        if device == 0 and self.is_lost:
            self.calls.append("stream_synchronize")
            raise DriverError("it fell off the bus", Status.DEVICE_LOST)

def watched(name):
    def entry(self, device, *arguments):
        if device == 0 and self.is_lost:
            self.calls.append(name)
        return getattr(Toy, name)(self, device, *arguments)
    return entry

names = "mem_alloc copy_async stream_create event_create event_record event_query stream_wait_event"
for name in names.split():
    setattr(Losing, name, watched(name))

driver = Losing()
torch_outboard.attach(driver)
ours, event, side = torch.ones(4).to("toy:0"), torch.toy.Event(), torch.toy.Stream(0)
event.record()
side.wait_event(event)
driver.is_lost = True
for use in (
    torch.toy.synchronize,
    torch.toy.synchronize,
    lambda: ours.copy_(torch.ones(4)),
    lambda: torch.empty(1 << 30, device="toy:0"),
    event.record,
    event.query,
    lambda: side.wait_event(event),
    lambda: torch.toy.current_stream(1).wait_event(event),
    lambda: torch.toy.Event().record(torch.toy.Stream(0)),
):
    with pytest.raises(torch.AcceleratorError, match="it fell off the bus"):
        use()
assert driver.calls == ["stream_synchronize"]
"""
    )


# Loses device 0 in the entry `loses`, and notes what it is asked for there from then on.
LOSING = """
import gc, pytest, torch, torch_outboard
from torch_outboard import DriverError, Status
from unit.toys import Toy

class Losing(Toy):
    loses, is_lost = None, False

    def __init__(self, **options):
        super().__init__(**options)
        self.calls = []

    def device_properties(self, device):
        return Toy.device_properties(self, device) | {"mem_granularity": 2 << 20}

    def stream_query(self, device, stream):
        return True

    def device_synchronize(self, device):
        pass

    def host_address(self, device, address, bytes):
        return 0

    def mem_reserve(self, device, bytes):
        return next(self.handles) << 32

    def mem_release(self, device, address, bytes):
        pass

    def mem_map(self, device, address, bytes):
        pass

    def mem_unmap(self, device, address, bytes):
        pass

    def graph_capture_begin(self, device, stream):
        pass

    def graph_capture_end(self, device, stream):
        return next(self.handles)

    def graph_instantiate(self, device, graph):
        return next(self.handles)

    def graph_launch(self, device, stream, executable):
        pass

    def graph_destroy(self, device, graph):
        pass

    def graph_executable_destroy(self, device, executable):
        pass

def watched(name, entry):
    def watch(self, device, *arguments):
        if device == 0 and (self.is_lost or name == self.loses):
            self.calls.append(name)
        if device == 0 and name == self.loses:
            self.is_lost = True
            raise DriverError("it fell off the bus", Status.DEVICE_LOST)
        return entry(self, device, *arguments)
    return watch

for name, entry in [*vars(Toy).items(), *vars(Losing).items()]:
    if name.startswith(("mem_", "stream_", "event_", "graph_", "copy_", "host_", "device_synchronize")):
        setattr(Losing, name, watched(name, entry))

driver = Losing(devices=1)
module = torch_outboard.attach(driver)
ours, event, side = torch.ones(4).to("toy"), module.Event(), module.Stream()
event.record(side)
event.record()
side.synchronize()
first, second = (torch.empty(8 << 20, device="toy") for _ in range(2))
graph = module.Graph(keep_graph=True)
with module.graph(graph):
    kept = torch.empty(4, device="toy")
graph.replay()
module.synchronize()

def begin():
    with module.stream(side):
        module.Graph().capture_begin()

def capture():
    with module.graph(module.Graph()):
        pass

def free():
    del globals()["first"], globals()["second"]
    module.empty_cache()

def free_graph():
    del globals()["kept"]
    graph.reset()
    module.empty_cache()
"""

LOSSES = {
    "mem_alloc": "lambda: torch.empty(16 << 20, device='toy')",
    "host_address": "lambda: torch.empty(16 << 20, device='toy')",
    "mem_free": "free",
    "stream_synchronize": "free",
    "device_synchronize": "free_graph",
    "graph_executable_destroy": "graph.reset",
    "graph_instantiate": "capture",
    "graph_capture_begin": "begin",
    "graph_capture_end": "capture",
    "stream_query": "side.query",
    "event_query": "event.synchronize",
    "event_record": "event.record",
    "copy_async": "lambda: ours.copy_(torch.ones(4))",
}


@pytest.mark.parametrize("entry", [*LOSSES, "mem_map", "mem_unmap"])
def test_after_any_entry_no_other_is_called(run_python, entry):
    is_mapped = entry in ("mem_map", "mem_unmap")
    use = {"mem_map": LOSSES["mem_alloc"], "mem_unmap": "free"}.get(entry) or LOSSES[entry]
    run_python(
        LOSING
        + f"""
driver.loses = {entry!r}
with pytest.raises(torch.AcceleratorError, match="it fell off the bus"):
    ({use})()
assert driver.calls == [{entry!r}]
for use in (module.synchronize, module.empty_cache, graph.reset, graph.instantiate, capture, event.query):
    try:
        use()
    except (torch.AcceleratorError, torch_outboard.CaptureError):
        pass
del graph, ours, event
gc.collect()
assert driver.calls == [{entry!r}]
""",
        env={"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if is_mapped else {},
    )
