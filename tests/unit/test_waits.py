# SPDX-License-Identifier: BSD-3-Clause
"""Long waits: their messages, and the effect of Ctrl-C."""

from __future__ import annotations

import pytest

# A C function that sleeps in the driver's place, and releases the interpreter
# lock as one of a library does.
HANGING = """
import ctypes, logging, os, signal, threading, pytest, torch, torch_outboard
from torch_outboard import _C
from unit.toys import Toy

class Hanging(Toy):
    "Its waits end when they are let go; a query says so before that."
    go = threading.Event()
    in_wait = threading.Event()
    asked = 0

    def wait(self, *_):
        self.in_wait.set()
        self.go.wait()
        return 0

    def is_done(self, *_):
        self.asked += 1
        if self.asked > 20:
            self.in_wait.set()
        return 0 if self.go.is_set() else 32  # OB_NOT_READY

    def __init__(self, **options):
        super().__init__(**options)
        # Entries bound by address: for the core they are C functions, which no signal ends.
        entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64)
        self.stream_synchronize, self.event_synchronize = entry(self.wait), entry(self.wait)
        self.stream_query, self.event_query = entry(self.is_done), entry(self.is_done)

torch_outboard.attach(Hanging)
driver = torch_outboard.attached_driver()
driver.go.set()
stream, event = torch.Stream("toy:0"), torch.Event("toy")
event.record(stream)
torch.empty(2, device="toy").copy_(torch.ones(2))
torch.accelerator.synchronize()
driver.go.clear()
driver.in_wait.clear()
"""

TELL = """
class Kept(logging.Handler):
    def emit(self, record):
        reported.append(record.getMessage())
        driver.go.set()
reported = []
logging.getLogger("torch_outboard").addHandler(Kept())
_C.set_long_wait(0.05)
"""


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        ("torch.empty(2, device='toy').cpu()", "stream_synchronize for .* the default stream, on which copy_async was"),
        ("stream.synchronize()", "stream_synchronize for 0 s, for the stream with id [0-9]+. Still waiting"),
        ("event.synchronize()", "event_synchronize for 0 s, for the stream with id"),
    ],
)
def test_a_long_wait_is_reported_once(run_python, wait, text):
    run_python(
        HANGING
        + TELL
        + f"""
{wait}
import re
assert len(reported) == 1 and re.search({text!r}, reported[0]), reported
assert "toy:0: thread " + str(threading.get_native_id()) + " has been waiting in" in reported[0]
"""
    )


def test_without_a_handler_it_is_reported_on_the_standard_error(run_python):
    answer = run_python(
        HANGING
        + """
import sys
class Ending:
    "The wait lasts until something is written."
    def write(self, text):
        driver.go.set()
        return sys.__stderr__.write(text)
    def flush(self):
        sys.__stderr__.flush()
sys.stderr = Ending()
_C.set_long_wait(0.05)
torch.accelerator.synchronize()
"""
    )
    assert answer.stderr.count("has been waiting in stream_synchronize for 0 s") == 1


# Work that lasts until it is let go, on a driver whose waits no signal ends. The
# first call of a new operator waits.
WORK = """
import logging, signal, threading, pytest, torch, torch_outboard
from torch_outboard import _C
torch_outboard.attach("sim")
go = threading.Event()
library = torch.library.Library("waits", "DEF")
library.define("last(Tensor x) -> Tensor")
library.impl("last", lambda x: (go.wait(), x.clone())[1], "CPU")
library.impl("last", torch.empty_like, "Meta")
x, stream, event = torch.ones(2, device="sim"), torch.Stream("sim"), torch.Event("sim")
go.set()
torch.ops.waits.last(x)
torch.accelerator.synchronize()
go.clear()
with stream:
    y = torch.ops.waits.last(x)
    event.record(stream)
"""

LASTING = (
    WORK
    + """
# A signal comes when the wait is told: then it is certain that the main thread waits.
class Interrupting(logging.Handler):
    def emit(self, record):
        reported.append(record.getMessage())
        signal.pthread_kill(threading.main_thread().ident, number)
reported, number = [], signal.SIGINT
logging.getLogger("torch_outboard").addHandler(Interrupting())
_C.set_long_wait(0.05)
"""
)


@pytest.mark.parametrize("wait", ["torch.accelerator.synchronize()", "stream.synchronize()", "event.synchronize()"])
def test_ctrl_c_ends_a_wait_of_the_users_own(run_python, wait):
    run_python(
        LASTING
        + f"""
with pytest.raises(KeyboardInterrupt):
    {wait}
assert "aten::" in reported[0] or "waits::last was queued last" in reported[0], reported
# Nothing is lost: the same wait, and others, once the work is done.
go.set()
{wait}
assert y.tolist() == [1, 1] and len(reported) == 1
"""
    )


def test_what_another_signal_does_is_done_within_the_wait(run_python):
    run_python(
        LASTING
        + """
number = signal.SIGUSR1
signal.signal(signal.SIGUSR1, lambda *_: go.set())
torch.accelerator.synchronize()
assert y.tolist() == [1, 1]
"""
    )


def test_ctrl_c_ends_the_wait_at_exit(run_python):
    # The work is never done, and the process ends all the same.
    run_python(LASTING)


def test_a_wait_in_python_handles_signals_itself(run_python):
    run_python(
        """
import signal, threading, pytest, torch, torch_outboard
from unit.toys import Toy
class Hanging(Toy):
    in_wait, go = threading.Event(), threading.Event()
    def stream_synchronize(self, device, stream):
        self.in_wait.set()
        self.go.wait()
    def stream_query(self, device, stream):
        raise AssertionError("asked although its own wait can be interrupted")
torch_outboard.attach(Hanging)
driver = torch_outboard.attached_driver()
stream = torch.Stream("toy:0")
driver.go.set()
torch.Event("toy").record(stream)
driver.go.clear()
driver.in_wait.clear()
# Python blocks on a lock in two steps, and a signal between them waits for the lock's end (10 of 4,000 did): it is sent
# until the wait is over, and raises once.
left, taken = threading.Event(), []
def raise_once(*_):
    taken.append(True)
    if len(taken) == 1:
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, raise_once)
def interrupt():
    driver.in_wait.wait()
    while not left.wait(0.01):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
interrupting = threading.Thread(target=interrupt)
interrupting.start()
with pytest.raises(KeyboardInterrupt):
    stream.synchronize()
left.set()
interrupting.join()
driver.go.set()
stream.synchronize()
"""
    )


def test_results_whose_sizes_are_known_are_not_waited_for(run_python):
    """A call that waited would end the work it waits for, since the message of the wait ends the work."""
    run_python(
        WORK
        + """
class LettingGo(logging.Handler):
    def emit(self, record):
        reported.append(record.getMessage())
        go.set()
reported = []
logging.getLogger("torch_outboard").addHandler(LettingGo())

given = torch.arange(6), torch.arange(24.0).view(6, 4), torch.arange(32.0).view(2, 4, 4), torch.tensor([2, 6]).int()
go.set()
ours = [tensor.to("sim") for tensor in given]
torch.accelerator.synchronize()
go.clear()

def calls(device, i, x, w, ends):
    yield torch.arange(2, 9, device=device)
    yield torch.arange(0, 1, 0.25, device=device)
    yield torch.arange(5, out=torch.empty(0, device=device, dtype=torch.float64))
    yield torch.eye(3, device=device)
    yield torch.linspace(0, 1, 5, device=device)
    yield i // 2
    yield x // 2.5
    yield torch._grouped_mm(x, w, offs=ends)

_C.set_long_wait(0.05)
with stream:
    torch.ops.waits.last(x)
    results = list(calls("sim", *ours))
    assert not reported and not go.is_set(), reported
    go.set()
    stream.synchronize()
for result, expected in zip(results, calls("cpu", *given), strict=True):
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0)
    assert result.stride() == expected.stride()
"""
    )
