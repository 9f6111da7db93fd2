# SPDX-License-Identifier: BSD-3-Clause
"""Guards restore without the driver: if its entries fail, the first error is raised, and the state is the old one."""

from __future__ import annotations

FAILING_DRIVER = """
import pytest, torch, torch_outboard
from examples.pure_python_driver import PythonDriver
from torch_outboard import DriverError, Status

class FailingDriver(PythonDriver):
    \"\"\"From `fails` on every call raises, but for what the process asked before.\"\"\"
    fails = None
    calls = 0

for entry in ("mem_alloc", "mem_free", "copy_async", "fill_async", "stream_create", "stream_destroy", "stream_query",
              "stream_synchronize", "stream_wait_event", "event_create", "event_destroy", "event_record", "event_query",
              "device_open", "device_close"):
    def method(self, *arguments, entry=entry, original=getattr(PythonDriver, entry)):
        self.calls += 1
        if self.fails:
            raise DriverError(f"{entry}: {self.fails}", Status.INTERNAL)
        return original(self, *arguments)
    if entry not in ("device_open", "device_close"):
        setattr(FailingDriver, entry, method)

driver = FailingDriver()
torch_outboard.attach(driver)
module = torch.python
x = torch.ones(8, device="python:0")
y = torch.ones(8, device="python:1")
before = module.current_stream(0), module.current_stream(1), module.current_device()
streams = torch.Stream("python:0"), torch.Stream("python:1")
for stream, tensor in zip(streams, (x, y)):
    with module.stream(stream):
        tensor.zero_().add_(1)  # makes the driver's stream

def state():
    return module.current_stream(0), module.current_stream(1), module.current_device()
"""


def test_python_guards(run_python):
    run_python(
        FAILING_DRIVER
        + """
for guard in (
    lambda: module.device(1),
    lambda: module.device_of(y),
    lambda: torch.accelerator.device_index(1),
    lambda: module.stream(streams[1]),
    lambda: module.StreamContext(streams[1]),
    lambda: streams[1],
):
    driver.fails = None
    with pytest.raises(DriverError, match="no work today") as caught:
        with guard():
            assert module.current_device() == 1
            driver.fails = "no work today"
            y.fill_(3)
    assert "fill_async" in str(caught.value)
    assert state() == before
    # To restore takes nothing of the driver.
    driver.fails = None
    with guard():
        calls = driver.calls
        driver.fails = "nothing works"
    assert state() == before and driver.calls == calls
driver.fails = None
assert (x + 1).tolist() == [2] * 8
"""
    )


def test_the_guard_of_an_operator(run_python):
    """An operator selects the device of its tensors for its own duration."""
    run_python(
        FAILING_DRIVER
        + """
for call in (lambda: y.fill_(3), lambda: y.cpu(), lambda: torch.empty(1 << 26, device=y.device), lambda: y.copy_(x)):
    driver.fails = "no work today"
    with pytest.raises(DriverError, match="no work today"):
        call()
    assert state() == before
    driver.fails = None
assert (y.zero_() + 1).tolist() == [1] * 8
assert state() == before
"""
    )


def test_the_guards_of_a_backward_pass(run_python):
    """Autograd selects the device and the stream of the forward pass, also on its own thread."""
    run_python(
        FAILING_DRIVER
        + """
with module.stream(streams[1]):
    leaf = torch.ones(8, device="python:1", requires_grad=True)
    loss = leaf.clone().sum()
driver.fails = "no work today"
with pytest.raises(DriverError, match="no work today"):
    loss.backward()
driver.fails = None
assert state() == before
leaf.grad = None
with module.stream(streams[1]):
    leaf.clone().sum().backward()
assert leaf.grad.tolist() == [1] * 8
assert state() == before
"""
    )


def test_guards_that_cannot_enter(run_python):
    run_python(
        FAILING_DRIVER
        + """
with pytest.raises(torch.AcceleratorError, match="out of range"):
    with module.device(7):
        raise AssertionError("entered")
with pytest.raises(torch.AcceleratorError, match="out of range"):
    with torch.Stream("python:7"):
        raise AssertionError("entered")
assert state() == before
"""
    )


def test_a_handle_that_the_driver_does_not_know(run_python):
    run_python(
        """
import pytest, torch, torch_outboard
torch_outboard.attach("sim")
before = torch.sim.current_stream()
stream = torch.sim.get_stream_from_external(0xdead, 0)
for use in (stream.synchronize, stream.query, stream.record_event):
    with pytest.raises(ValueError, match="has no stream 0xdead"):
        use()
with pytest.raises(ValueError, match="has no stream 0xdead"):
    with torch.sim.stream(stream):
        torch.zeros(3, device="sim").add_(1)
assert torch.sim.current_stream() == before
assert torch.ones(2, device="sim").tolist() == [1, 1]
"""
    )
