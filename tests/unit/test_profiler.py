# SPDX-License-Identifier: BSD-3-Clause
"""The sources of a profile: the driver's activity records, or else times that the core takes; and missing parts."""

from __future__ import annotations

PROFILE = """
import json, time, pytest, torch, torch_outboard
from torch.profiler import ProfilerActivity, profile
from examples.pure_python_driver import PythonDriver
from torch_outboard import DriverError, Status

def trace_of(work, path):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as result:
        work()
    result.export_chrome_trace(path)
    return [event for event in json.load(open(path))["traceEvents"] if event["ph"] in "Xsf"]

def of(events, category):
    return [event for event in events if event.get("cat") == category and event["ph"] == "X"]
"""

RECORDING_DRIVER = (
    PROFILE
    + """
KERNEL, COPY, FILL, HOST = 1, 2, 4, 8

class RecordingDriver(PythonDriver):
    def __init__(self, **options):
        super().__init__(**options)
        self.kinds = []
        self.correlation = 0
        self.records = []
        self.fails = []

    def activity_enable(self, kinds):
        self.kinds.append(kinds)

    def activity_correlate(self, correlation):
        self.correlation = correlation

    def activity_read(self, capacity):
        taken, self.records = self.records[:capacity], self.records[capacity:]
        return taken

    def record(self, kind, device, stream, name, correlation=None, bytes=0, src=0, dst=0):
        now = time.monotonic_ns()
        number = self.correlation if correlation is None else correlation
        self.records.append((kind, device, stream, number, now - 1000, now, bytes, src, dst, name))

    def copy_async(self, device, stream, dst, src, bytes, dst_device, src_device):
        super().copy_async(device, stream, dst, src, bytes, dst_device, src_device)
        self.record(COPY, device, stream, "a copy", bytes=bytes, src=src_device, dst=dst_device)

    def fill_async(self, device, stream, dst, pattern, count):
        super().fill_async(device, stream, dst, pattern, count)
        self.record(FILL, device, stream, "a fill", bytes=len(pattern) * count)

    def host_callback(self, device, stream, work):
        work()
        self.record(HOST, device, stream, "driver's name")

for entry in ("activity_enable", "activity_correlate", "activity_read"):
    def failing(self, *arguments, entry=entry, original=getattr(RecordingDriver, entry)):
        if entry in self.fails:
            raise DriverError("no records today", Status.UNAVAILABLE)
        return original(self, *arguments)

    setattr(RecordingDriver, entry, failing)

driver = RecordingDriver()
torch_outboard.attach(driver)
x = torch.ones(8, device="python")
"""
)


def test_the_drivers_records(run_python, tmp_path):
    run_python(
        RECORDING_DRIVER
        + f"""
def work():
    x.fill_(2)
    driver.record(KERNEL, 1, 77, "of nobody", correlation=1 << 40)
    x.sin_()

path = "{tmp_path}/trace.json"
driver.records = [(KERNEL, 0, 0, 1, 5, 6, 0, 0, 0, "of an earlier time")] * 1000
events = trace_of(work, path)
assert driver.kinds == [KERNEL | COPY | FILL | HOST, 0]
assert driver.correlation == 0, "what is queued between calls is nobody's"
kernels = {{event["name"]: event for event in of(events, "kernel")}}
assert set(kernels) == {{"of nobody", "aten::sin_"}}, "an operator's host work has the operator's name"
stray = kernels["of nobody"]
assert (stray["pid"], "correlation" in stray["args"]) == (1, False)
(fill,) = of(events, "gpu_memset")
assert (fill["args"]["bytes"], round(fill["dur"], 2)) == (32, 1.0)
arrows = [(event["ph"], event["id"] - (1 << 30)) for event in events if event.get("cat") == "ac2g"]
assert sorted(arrows) == [("f", 1), ("f", 2), ("s", 1), ("s", 2)]
# The clock of the records is the one of the operators.
(operator,) = [event for event in of(events, "cpu_op") if event["name"] == "aten::sin_"]
assert operator["ts"] - 2 <= kernels["aten::sin_"]["ts"] <= operator["ts"] + operator["dur"] + 2
# Off again.
kinds = list(driver.kinds)
x.sin_()
torch.python.synchronize()
assert driver.kinds == kinds and driver.correlation == 0
"""
    )


def test_a_driver_that_cannot_start_its_records_is_timed_by_events(run_python, tmp_path):
    done = run_python(
        RECORDING_DRIVER
        + f"""
driver.fails.append("activity_enable")
events = trace_of(lambda: (x.fill_(2), x.sin_()), "{tmp_path}/trace.json")
assert [event["name"] for event in of(events, "kernel")] == ["aten::sin_"]
(fill,) = of(events, "gpu_memset")
assert fill["dur"] >= 0 and driver.correlation == 0 and not driver.kinds
"""
    )
    assert "activity_enable failed with UNAVAILABLE (14): no records today" in done.stderr


def test_a_driver_that_loses_its_records(run_python, tmp_path):
    done = run_python(
        RECORDING_DRIVER
        + f"""
def work():
    x.sin_()
    driver.fails.append("activity_read")

events = trace_of(work, "{tmp_path}/trace.json")
assert not of(events, "kernel")
assert [event["name"] for event in of(events, "privateuse1_runtime")][0] == "host_callback"
driver.fails.clear()
assert of(trace_of(x.sin_, "{tmp_path}/trace.json"), "kernel")
"""
    )
    assert "activity_read failed with UNAVAILABLE (14): no records today" in done.stderr


def test_work_that_cannot_be_marked_is_queued_and_reported_in_the_profile(run_python, tmp_path):
    done = run_python(
        RECORDING_DRIVER
        + f"""
def work():
    driver.fails.append("activity_correlate")
    x.sin_()
    torch.python.synchronize()
    driver.fails.clear()
    x.cos_()

events = trace_of(work, "{tmp_path}/trace.json")
# What could not be marked is in the profile as nobody's work.
assert [event["name"] for event in of(events, "kernel")] == ["driver's name", "aten::cos_"]
assert torch.equal(x.cpu(), torch.ones(8).sin().cos())
"""
    )
    assert "activity_correlate failed with UNAVAILABLE (14): no records today" in done.stderr


def test_a_driver_without_times(run_python, tmp_path):
    """Then only work that runs on the host has times, and the profile says so, once."""
    done = run_python(
        PROFILE
        + f"""
class Timeless(PythonDriver):
    event_timestamp = None

torch_outboard.attach(Timeless())
x = torch.ones(8, device="python")
events = trace_of(lambda: (x.fill_(2), x.fill_(3), x.sin_()), "{tmp_path}/trace.json")
assert [event["name"] for event in of(events, "kernel")] == ["aten::sin_"]
assert not of(events, "gpu_memset")
"""
    )
    assert done.stderr.count("neither activity records nor event_timestamp") == 1
    assert "not done" not in done.stderr


def test_a_clock_that_is_off_shortens_no_work(run_python, tmp_path):
    """Times before their calls are moved, and a clock that is measured anew between two readings is not trusted."""
    done = run_python(
        PROFILE
        + f"""
class Skewed(PythonDriver):
    early, jump, pause, has_filled = 0, 0, 0, False

    def event_timestamp(self, device, event):
        self.early += self.jump
        return super().event_timestamp(device, event) - self.early

    def event_elapsed(self, device, start, end):
        return (super().event_timestamp(device, end) - super().event_timestamp(device, start)) * 1e-6

    def event_record(self, device, stream, event):
        if not self.has_filled:
            time.sleep(self.pause)  # as a thread that loses its processor before the event is queued
        self.has_filled = False
        super().event_record(device, stream, event)

    def fill_async(self, device, stream, dst, pattern, count):
        time.sleep(0.002)
        super().fill_async(device, stream, dst, pattern, count)
        self.has_filled = True

driver = Skewed()
torch_outboard.attach(driver)
x = torch.ones(8, device="python")
ahead = [(300_000_000, 0, 0.001), (0, 1_000_000_000, 0.001), (0, -1_000_000_000, 0.001), (500_000_000, 0, 0.001)]
# Between the first event and the call passes more time than the clock is early.
ahead += [(200_000_000, 0, 0.3)]
for driver.early, driver.jump, driver.pause in ahead:
    events = trace_of(lambda: (x.fill_(2), x.fill_(3)), "{tmp_path}/trace.json")
    fills = of(events, "gpu_memset")
    calls = [event for event in of(events, "privateuse1_runtime") if event["name"] == "fill_async"]
    assert len(fills) == len(calls) == 2
    for fill, call in zip(fills, calls):
        assert 2_000 <= fill["dur"] < 100_000, (driver.early, fill)
        assert fill["ts"] >= call["ts"] - 0.01
"""
    )
    assert done.stderr.count("timestamps precede the calls that queued the work by up to") >= 1


def test_work_that_is_not_done_is_counted(run_python, tmp_path):
    """A profile ends with a wait for the current device only."""
    done = run_python(
        PROFILE
        + f"""
class Deferring(PythonDriver):
    queued = {{}}

    def host_callback(self, device, stream, work):
        self.queued.setdefault(stream, []).append(work)

    def stream_synchronize(self, device, stream):
        for work in self.queued.pop(stream, ()):
            work()

torch_outboard.attach(Deferring())
x, y = torch.ones(8, device="python:0"), torch.ones(8, device="python:1")
events = trace_of(lambda: (x.sin_(), y.sin_(), y.cos_()), "{tmp_path}/trace.json")
assert [event["pid"] for event in of(events, "kernel")] == [0]
assert [event["name"] for event in of(events, "privateuse1_runtime")].count("host_callback") == 3
torch.python.synchronize(1)
assert len(of(trace_of(x.sin_, "{tmp_path}/trace.json"), "kernel")) == 1, "late work is not of the next profile"
"""
    )
    assert done.stderr.count("2 calls had queued work that was unfinished when the profile ended") == 1
    assert "torch.python.synchronize()" in done.stderr


def test_in_a_forked_child(run_python, tmp_path):
    """The child can profile the CPU, and the error says how to profile the device."""
    run_python(
        RECORDING_DRIVER
        + f"""
import os
child = os.fork()
if child == 0:
    with profile(activities=[ProfilerActivity.CPU]) as result:
        torch.ones(3) + 1
    assert "aten::add" in {{row.key for row in result.key_averages()}}
    with pytest.raises(RuntimeError, match="'spawn' start method"):
        trace_of(lambda: torch.ones(3) + 1, "{tmp_path}/trace.json")
    assert not driver.kinds
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    )
