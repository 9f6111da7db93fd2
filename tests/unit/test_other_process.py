# SPDX-License-Identifier: BSD-3-Clause
"""The second template of `outboard new`: the end of the process with the devices, and of the processes that use it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from .contract import ROOT

START = """
import os, signal, sys, pytest, torch, torch_outboard
torch_outboard.attach("examples.other_process:OtherProcessDriver")
driver = torch_outboard.attached_driver()
x = torch.ones(4, device="other_process")
torch.accelerator.synchronize()
"""
QUIET = {"OUTBOARD_FALLBACK": "silent"}


def test_devices_that_are_killed_are_lost(run_python):
    run_python(
        START
        + """
os.kill(driver.link.process.pid, signal.SIGKILL)
with pytest.raises(torch.AcceleratorError, match="the process with the devices, .*, was ended by SIGKILL"):
    torch.accelerator.synchronize()
with pytest.raises(torch.AcceleratorError, match="was lost.*The first cause: .* was ended by SIGKILL"):
    x.cpu()
""",
        env=QUIET,
    )


def test_the_devices_last_words_are_the_cause(run_python):
    answer = run_python(
        START
        + """
driver.link.notify(99, next(iter(driver.streams)))
with pytest.raises(torch.AcceleratorError, match="has ended with status 1: ValueError: 99 is not an Op"):
    torch.accelerator.synchronize()
""",
        env=QUIET,
    )
    assert "ValueError: 99 is not an Op" in answer.stderr  # where the process itself writes


def test_a_failure_of_queued_work_is_raised_once(run_python):
    run_python(
        START
        + """
from examples.other_process.device import Op
stream = next(iter(driver.streams))
for _ in range(2):
    driver.link.notify(Op.FILL, stream, 12345, 1, data=b"x")  # which the driver itself would refuse
    x.zero_()
    with pytest.raises(torch_outboard.DriverError, match="ValueError: the 1 bytes at 0x3039 are not memory"):
        torch.accelerator.synchronize()
    torch.accelerator.synchronize()
assert x.tolist() == [0, 0, 0, 0]
""",
        env=QUIET,
    )


def test_mistakes_fail_in_the_call(run_python):
    run_python(
        START
        + """
stream, address = next(iter(driver.streams)), next(iter(driver.blocks))
bytes = driver.blocks[address]
for wrong in (
    lambda: driver.copy_async(0, 999, address, address, 1, 0, 0),
    lambda: driver.copy_async(0, stream, address + bytes - 1, address, 2, 0, 0),
    lambda: driver.fill_async(0, stream, address, b"1234", bytes // 4 + 1),
    lambda: driver.mem_free(0, address + 1),
    lambda: driver.stream_synchronize(0, 999),
    lambda: driver.stream_destroy(0, 999),
    lambda: driver.event_record(0, stream, 999),
    lambda: driver.event_query(0, 999),
):
    with pytest.raises(torch_outboard.DriverError) as caught:
        wrong()
    assert caught.value.code == torch_outboard.Status.INVALID_ARGUMENT
""",
        env=QUIET,
    )


def test_no_query_waits_for_devices_that_stand_still(run_python):
    """A copy to the host does not wait either: it is queued, and the core makes and reports the wait behind it."""
    run_python(
        START
        + """
import ctypes
event, stream, address = torch.Event(), torch.accelerator.current_stream(), next(iter(driver.blocks))
(handle,) = (stream for stream in driver.streams if driver.stream_query(0, stream))
os.kill(driver.link.process.pid, signal.SIGSTOP)
try:
    x.zero_()
    event.record()
    assert not event.query() and not stream.query() and not stream.query()
    host = ctypes.create_string_buffer(b"....")
    driver.copy_async(0, handle, ctypes.addressof(host), address, 4, -1, 0)
    assert host.value == b"...." and not driver.stream_query(0, handle)
finally:
    os.kill(driver.link.process.pid, signal.SIGCONT)
torch.accelerator.synchronize()
assert event.query() and stream.query() and host.raw == bytes(5)
""",
        env=QUIET,
    )


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("driver.link.process.kill()", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        # Where the tests run in the background, processes are born deaf to the signal.
        ("signal.signal(signal.SIGINT, signal.default_int_handler)\nos.killpg(0, signal.SIGINT)", -signal.SIGINT),
    ],
    ids=["end", "the devices end first", "exit", "killed", "interrupted"],
)
def test_the_devices_end_with_their_user(end, status):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OUTBOARD_")} | QUIET
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    command = [sys.executable, "-W", "error", "-c", START + "for _ in range(100): x.add_(1)\n" + end]
    # The devices' process has our pipe for its errors too: this returns once both have ended.
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, process_group=0, cwd=ROOT
    )
    assert answer.returncode == status, answer.stderr
    if status == 0:
        assert answer.stderr == ""
