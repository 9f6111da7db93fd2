# SPDX-License-Identifier: BSD-3-Clause
"""The thread that builds plans: interrupts, forks and the end of the process."""

from __future__ import annotations

import pytest

from torch_outboard.testing.plugin import RunPython

BEGIN = """
import os, signal, sys, threading, warnings
import torch, torch_outboard
if torch_outboard.attach("opencl", host_access=False, cache=False).device_count() == 0:
    os._exit(3)
"""


def run(run_compiler: RunPython, code: str) -> tuple[str, str]:
    done = run_compiler(BEGIN + code, env={"OUTBOARD_FALLBACK": "error"}, status=None)
    if done.returncode == 3:
        pytest.skip("capability: an OpenCL device")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_ctrl_c_in_a_build_ends_the_process_as_usual(run_compiler: RunPython) -> None:
    """Python would end the thread within a function of torch, which aborts the process."""
    code = """
import torch_outboard.kernels.plans.lower as lower
x = torch.arange(12.0).to("ocl").reshape(3, 4)
(x + x).cpu()
real = lower.lower
def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return real(*arguments)
lower.lower = interrupted
try:
    x.sort()
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(run_compiler, code) == ("interrupted\n", "")


def test_after_ctrl_c_the_operator_has_its_kernels(run_compiler: RunPython) -> None:
    code = """
import torch_outboard.kernels.plans.lower as lower
x = torch.arange(12.0).to("ocl")
real, calls = lower.lower, []
def interrupted(*arguments):
    calls.append(1)
    if len(calls) == 1:
        os.kill(os.getpid(), signal.SIGINT)
    return real(*arguments)
lower.lower = interrupted
try:
    x + x
except KeyboardInterrupt:
    print("interrupted")
print((x + x).sum().item())
"""
    assert run(run_compiler, code) == ("interrupted\n132.0\n", "")


def test_a_child_builds_with_a_thread_of_its_own(run_compiler: RunPython) -> None:
    code = """
from torch_outboard.kernels import builder
assert builder._THREAD.run(threading.current_thread) is not threading.current_thread()
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, of forks with threads
    child = os.fork()
if child == 0:
    x = torch.arange(12.0).to("ocl")
    print((x + x).sum().item(), flush=True)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    assert run(run_compiler, code) == ("132.0\n", "")


def test_the_first_call_may_be_at_the_end(run_compiler: RunPython) -> None:
    code = """
import atexit
x = torch.arange(12.0).to("ocl")
atexit.register(lambda: print((x + x).sum().item()))
"""
    assert run(run_compiler, code) == ("132.0\n", "")


def test_without_a_thread_the_reason_is_reported(run_compiler: RunPython) -> None:
    code = """
x = torch.arange(12.0).to("ocl")
def start(self):
    raise RuntimeError("can't start new thread")
real, threading.Thread.start = threading.Thread.start, start
try:
    x + x
except torch_outboard.NotSupportedError as error:
    assert "no thread could be started to build its plan: can't start new thread" in str(error), error
"""
    assert run(run_compiler, code) == ("", "")
