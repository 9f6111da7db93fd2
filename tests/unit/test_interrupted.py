# SPDX-License-Identifier: BSD-3-Clause
"""An interruption undoes what was begun, and comes through."""

from __future__ import annotations

import subprocess
import sys

import pytest

from torch_outboard.testing import plugin

STREAMS = """
import torch, torch_outboard
from torch_outboard.compile.capture import recording
from torch_outboard.compile.fx.streams import restoring_streams

module = torch_outboard.attach("sim", devices=1)
device = torch.device("sim", 0)
before = module.current_stream()

def interrupted(*arguments):
    raise KeyboardInterrupt

def raises(function):
    try:
        function()
    except KeyboardInterrupt:
        assert module.current_stream() == before and not module.is_current_stream_capturing()
        return
    raise AssertionError("it did not come through")

# The current stream, by a graph that FX wraps.
def leaves(arguments):
    torch.accelerator.set_stream(torch.Stream(device))
    interrupted()

raises(lambda: restoring_streams(leaves)(None))

# A user's capture, as it begins.
class Interrupted(module.Graph):
    capture_begin = interrupted

def capture():
    with module.graph(Interrupted()):
        raise AssertionError("the block was entered")

raises(capture)

# A capture of mode="reduce-overhead".
x = torch.ones(4, device=device)

def record():
    def half(inputs):
        assert module.is_current_stream_capturing()
        inputs[0] + 1
        interrupted()

    recording.Recording(half, device, frozenset(), [x])

raises(record)
with module.graph(module.Graph()) as graph:  # nothing captures any more
    x + 1
assert (x + 1).tolist() == [2.0] * 4
"""


def test_streams_are_restored_and_captures_end(run_python):
    run_python(STREAMS)


SHARED = """
import os, sys, torch
from collections import deque
from torch_outboard.device import sharing

def interrupt(*_):
    raise KeyboardInterrupt

def raises(function, *arguments):
    try:
        function(*arguments)
    except KeyboardInterrupt:
        return
    raise AssertionError("it did not come through")

lease = (sharing._Segment((0, b""), 64), None, 3)
sharing._ended = deque([lease])
torch.accelerator.synchronize = interrupt
raises(sharing._release_dropped)
assert list(sharing._ended) == [lease]  # released by the next call
sharing._ended.clear()

sharing._File.lock = interrupt
raises(sharing._lock_message, sys.argv[1], 0)
assert not sharing._files  # the file is closed
"""


def test_received_storages_are_released_later_and_files_closed(run_python, tmp_path):
    path = tmp_path / "sent"
    path.write_bytes(bytes(4))
    run_python(SHARED, str(path))


def test_a_tests_process_is_killed(monkeypatch):
    begun = []

    class Interrupted(subprocess.Popen):
        def communicate(self, *_, **__):
            begun.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(plugin.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        plugin._run_with_stacks([sys.executable, "-c", "import signal; signal.pause()"], {})
    assert [process.returncode for process in begun] == [-9]


REFUSAL = """
from torch._inductor.codegen import common
from torch_outboard.compile import register

class Driver:
    name = "interrupted"

class Generators:
    driver = Driver

def fail(*_):
    raise error("of torch")

register.generators = lambda: Generators
common.register_backend_for_device = fail
for error in (ImportError, KeyboardInterrupt):
    try:
        register._register_broken_backend()
    except error:
        continue
    raise AssertionError(f"{error} did not come through")
common.register_backend_for_device = lambda device: None
register._register_broken_backend()
"""


def test_only_another_signature_is_passed_over_when_a_refusal_is_registered(run_python):
    assert "torch.compile cannot use the device" in run_python(REFUSAL, fresh=True).stderr
