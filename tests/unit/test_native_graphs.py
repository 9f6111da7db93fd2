# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of a driver that captures itself: a driver in Python that records the calls of a capture."""

from __future__ import annotations

import pytest
import torch

DRIVER = """
import gc, pytest, torch, torch_outboard
from examples.pure_python_driver import PythonDriver
from torch_outboard import CaptureError, DriverError

class CapturingDriver(PythonDriver):
    def __init__(self, **options):
        super().__init__(**options)
        self.capturing = {}
        self.graphs = {}
        self.executables = {}
        self.launches = 0
        self.fails = set()

    def call(self, stream, work):
        self.capturing[stream].append(work) if stream in self.capturing else work()

    def copy_async(self, device, stream, *arguments):
        self.call(stream, lambda: PythonDriver.copy_async(self, device, stream, *arguments))

    def fill_async(self, device, stream, *arguments):
        self.call(stream, lambda: PythonDriver.fill_async(self, device, stream, *arguments))

    def host_callback(self, device, stream, work):
        self.call(stream, work)

    def stream_synchronize(self, device, stream):
        assert stream not in self.capturing, "the core waits for a capturing stream"

    def graph_capture_begin(self, device, stream):
        if "begin" in self.fails:
            raise DriverError("no capture today")
        self.capturing[stream] = []

    def graph_capture_end(self, device, stream):
        calls = self.capturing.pop(stream)
        if "end" in self.fails:
            raise DriverError("the capture is broken")
        graph = next(self.handles)
        self.graphs[graph] = calls
        return graph

    def graph_instantiate(self, device, graph):
        executable = next(self.handles)
        self.executables[executable] = list(self.graphs[graph])
        return executable

    def graph_launch(self, device, stream, executable):
        self.launches += 1
        for work in self.executables[executable]:
            work()

    def graph_destroy(self, device, graph):
        del self.graphs[graph]

    def graph_executable_destroy(self, device, executable):
        del self.executables[executable]

driver = CapturingDriver()
module = torch_outboard.attach(driver)
x = torch.zeros(8, device="python")
graph = module.Graph()
"""


def test_the_drivers_graph_is_replayed(run_python):
    run_python(
        DRIVER
        + """
with module.graph(graph):
    x.fill_(2)
    y = x * 3
    z = torch.empty_like(y).copy_(y)
    drawn = torch.rand(4, device="python")
assert x.tolist() == [0] * 8 and driver.launches == 0
assert len(driver.executables) == 1 and not driver.graphs
torch.manual_seed(4)
draws = []
for _ in range(3):
    z.zero_()
    graph.replay()
    assert z.tolist() == [6] * 8
    draws.append(drawn.tolist())
torch.manual_seed(4)
assert draws == [torch.rand(4, device="python").tolist() for _ in range(3)]
assert driver.launches == 3
graph.reset()
assert not driver.executables

kept = module.Graph(keep_graph=True)
with module.graph(kept):
    x.fill_(5)
assert driver.graphs and not driver.executables
kept.replay()
assert x.tolist() == [5] * 8 and driver.executables
del kept
gc.collect()
module.synchronize()
assert not driver.graphs and not driver.executables
"""
    )


def test_a_captured_failure_and_a_refusal(run_python):
    run_python(
        DRIVER
        + """
index = torch.zeros(2, dtype=torch.int64, device="python")
with module.graph(graph):
    picked = x.index_select(0, index)
index.fill_(100)
graph.replay()
with pytest.raises(IndexError, match="index_select"):
    module.synchronize()
graph.reset()
with pytest.raises(CaptureError, match="item"), module.graph(graph):
    x.sum().item()
assert not driver.capturing and not driver.graphs
with module.graph(graph):
    y = x + 1
graph.replay()
assert y.tolist() == [1] * 8
"""
    )


def test_what_the_driver_fails_at_is_raised_and_leaves_nothing_behind(run_python):
    run_python(
        DRIVER
        + """
for entry, message in (("begin", "no capture today"), ("end", "the capture is broken")):
    driver.fails = {entry}
    with pytest.raises(DriverError, match=message):
        with module.graph(graph):
            x.add_(1)
    assert not module.is_current_stream_capturing() and not driver.capturing
driver.fails = set()
assert (x + 1).tolist() == [1] * 8
with module.graph(graph):
    y = x + 1
graph.replay()
assert y.tolist() == [1] * 8
"""
    )


def test_a_compiled_function_becomes_one_launch(run_compiler):
    """With mode="reduce-overhead"; in generated code each kernel and each operator is a call of the driver."""
    run_compiler(
        DRIVER.replace("driver = Cap", 'CapturingDriver.code_generator = "cpp"\ndriver = Cap')
        + """
calls = 0
of_driver = CapturingDriver.call

def counted(self, stream, work):
    global calls
    calls += stream not in self.capturing
    of_driver(self, stream, work)

CapturingDriver.call = counted

def function(x):
    for _ in range(4):
        x = (x @ x).cos() / 4
    return x

def run(compiled, x):
    global calls
    calls = driver.launches = 0
    result = compiled(x)
    return calls, driver.launches, result

x = torch.randn(8, 8, device="python")
generated, graphed = torch.compile(function), torch.compile(function, mode="reduce-overhead")
for _ in range(4):
    generated(x), graphed(x)
x = torch.randn(8, 8, device="python")
before, launches, want = run(generated, x)
assert before >= 8 and launches == 0, (before, launches)
after, launches, got = run(graphed, x)
# Copies of the input and of the output, and the core's own mark before the launch.
assert after == 3 and launches == 1, (after, launches)
assert torch.equal(got.cpu(), want.cpu())
"""
    )


def with_methods(methods: str) -> str:
    """Return the code of the driver above with other methods, which attach binds."""
    return DRIVER.replace("driver = Cap", methods + "\ndriver = Cap")


def test_a_stream_is_the_drivers_until_the_capture_has_ended_there(run_python):
    run_python(
        with_methods(
            """
import threading

def end(self, device, stream):
    # Another thread allocates, and so looks at what waits for this stream.
    other = threading.Thread(target=lambda: torch.empty(16, device="python"))
    other.start()
    other.join()
    return of_driver(self, device, stream)

def record(self, device, stream, event):
    assert stream not in self.capturing, "an event is recorded on a stream that the driver captures"
    return PythonDriver.event_record(self, device, stream, event)

of_driver = CapturingDriver.graph_capture_end
CapturingDriver.graph_capture_end, CapturingDriver.event_record = end, record
"""
        )
        + """
parked = torch.zeros(64, device="python")
stream = module.Stream()
with module.graph(graph, stream=stream):
    y = x + 1
    parked.record_stream(stream)
    del parked  # waits for the end of the capture
module.synchronize()
graph.replay()
assert y.tolist() == [1] * 8
"""
    )


def test_a_capture_that_is_lost_as_it_begins_ends(run_python):
    run_python(
        with_methods(
            """
import threading
is_disturbed = True

def begin(self, device, stream):
    of_driver(self, device, stream)
    # Another thread waits for the whole device, which a capture in mode "global" forbids, and is lost by.
    def wait():
        with pytest.raises(CaptureError):
            module.synchronize()
    if is_disturbed:
        other = threading.Thread(target=wait)
        other.start()
        other.join()

of_driver = CapturingDriver.graph_capture_begin
CapturingDriver.graph_capture_begin = begin
"""
        )
        + """
with pytest.raises(CaptureError, match="synchronizing a device"), module.graph(graph):
    pass
assert not driver.capturing
is_disturbed = False
with module.graph(graph):
    y = x + 1
graph.replay()
assert y.tolist() == [1] * 8
"""
    )


def test_a_graph_is_not_destroyed_while_a_failed_replay_is_under_way(run_python):
    run_python(
        with_methods(
            """
queued = []
fails = False

def call(self, stream, work):
    self.capturing[stream].append(work) if stream in self.capturing else queued.append(work)

def wait(self, device, stream):
    while queued:
        queued.pop(0)()

def launch(self, device, stream, executable):
    if fails:
        raise DriverError("no launch today")
    queued.extend(self.executables[executable])

def destroy(self, device, executable):
    assert not queued, "a graph is destroyed while what it needs is queued"
    del self.executables[executable]

CapturingDriver.call, CapturingDriver.stream_synchronize = call, wait
CapturingDriver.graph_launch, CapturingDriver.graph_executable_destroy = launch, destroy
CapturingDriver.event_query = lambda self, device, event: not queued
"""
        )
        + """
with module.graph(graph):
    y = x + 1
fails = True
with pytest.raises(DriverError, match="no launch today"):
    graph.replay()
assert queued, "the mark before the launch is queued"
graph.reset()
assert not queued and not driver.executables
"""
    )


def test_a_graph_that_is_dropped_in_its_capture_ends_it(run_python):
    """The capture ends before the graph is freed, while a failure of the driver can still be reported."""
    run_python(
        DRIVER
        + """
import sys
reported = []
sys.unraisablehook = lambda what: reported.append(what.exc_value)
stream = module.Stream()
for fails in (set(), {"end"}):
    driver.fails = fails
    with module.stream(stream):
        graph = module.Graph()
        graph.capture_begin()
        y = x + 1
        try:
            raise LookupError("the user's own")
        except LookupError as error:
            del graph
        assert not driver.capturing and not module.is_current_stream_capturing()
        assert (x + 1).tolist() == [1] * 8
    assert not driver.graphs
[error] = reported
assert "graph_capture_end on device 0" in str(error) and "the capture is broken" in str(error)
driver.fails = {"end"}
with module.stream(stream):
    graph = module.Graph()
    graph.capture_begin()
    with pytest.raises(DriverError, match="the capture is broken"):
        graph.reset()
    assert (x + 1).tolist() == [1] * 8
with pytest.raises(LookupError, match="the user's own") as caught, module.graph(graph):
    raise LookupError("the user's own")
assert "the capture is broken" in caught.value.__notes__[0]
with pytest.raises(CaptureError, match="item") as caught, module.graph(graph):
    x.sum().item()
assert not hasattr(caught.value, "__notes__") and not driver.capturing
"""
    )


@pytest.mark.skipif(torch.__version__ < (2, 12), reason="torch has no torch.accelerator.Graph")
def test_a_destructor_of_torchs_own_graph_calls_no_entry(run_python):
    run_python(
        with_methods(
            """
of_driver = CapturingDriver.graph_capture_end
is_hit = False

def end(self, device, stream):
    if is_hit:
        raise KeyboardInterrupt
    return of_driver(self, device, stream)

CapturingDriver.graph_capture_end = end
"""
        )
        + """
stream = module.Stream()
with module.stream(stream):
    graph = torch.accelerator.Graph()
    graph.capture_begin()
    y = x + 1
    is_hit = True
    del graph
    gc.collect()
    assert driver.capturing, "the destructor has called the driver"
    with pytest.raises(KeyboardInterrupt):
        x + 1
    assert not module.is_current_stream_capturing()
    is_hit = False
    driver.capturing.clear()  # which the interrupt has left
    assert (x + 1).tolist() == [1] * 8

    graph = torch.accelerator.Graph()
    graph.capture_begin()
    del graph
    gc.collect()
    with pytest.raises(CaptureError, match="was destroyed while it was capturing stream .* has been ended, but"):
        x.sum().item()
    assert not driver.capturing and not driver.graphs
    assert (x + 1).tolist() == [1] * 8
"""
    )
