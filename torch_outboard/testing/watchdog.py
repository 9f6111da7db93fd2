# SPDX-License-Identifier: BSD-3-Clause
"""A time limit for each test. What hangs is told with the stacks of all its threads, and the process ends.

A wait that never ends is the commonest mistake of a new driver, and it hangs below Python: an exception could not be
raised there, and Python's stacks alone don't say which entry of the driver is waited for.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import resource
import threading
from collections.abc import Generator
from typing import Any

import pytest
import torch

__all__ = ["Watchdog"]

# If the thread that tells gets no interpreter lock in that many seconds, Python's stacks alone are written.
_GRACE = 10

# torch's handler of fatal signals, which prints the stacks of C, needs more than the 16 KiB that faulthandler gave the
# main thread for its handlers: it would write over the heap below them.
_SIGNAL_STACK = 1 << 20


class _StackT(ctypes.Structure):
    _fields_ = (("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t))


class Watchdog:
    """Ends the process when a test, with its fixtures, takes longer than `seconds`."""

    def __init__(self, config: pytest.Config, seconds: float) -> None:
        self._config = config
        self._seconds = seconds
        # Of the process itself: while a test runs pytest has put a file of its own behind 2.
        self._stderr = os.dup(2)
        self._signal_stack = mmap.mmap(-1, _SIGNAL_STACK)

    def pytest_runtestloop(self) -> None:
        """Gives the main thread a stack for handlers of signals, after pytest's faulthandler gave it one."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._signal_stack))
        stack = _StackT(ss_sp=address, ss_flags=0, ss_size=_SIGNAL_STACK)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.sigaltstack(ctypes.byref(stack), None) != 0:
            raise OSError(ctypes.get_errno(), "sigaltstack failed")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        timer = threading.Timer(self._seconds, self._tell, (item,))
        timer.daemon = True
        timer.start()
        # A thread of C, which needs no interpreter lock.
        faulthandler.dump_traceback_later(self._seconds + _GRACE, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            timer.cancel()
            faulthandler.cancel_dump_traceback_later()

    def _tell(self, item: pytest.Item) -> None:
        output = self._captured(item)
        os.dup2(self._stderr, 2)
        text = f"\n{item.nodeid} has not ended within {self._seconds:g} s (--time-limit).\n"
        os.write(2, f"{text}{output}\nIts threads, in Python:\n".encode())
        faulthandler.dump_traceback(file=2)
        os.write(2, b"\nand in C and C++, down to the driver's entry that is waited for:\n")
        # Whatever lies in memory would not be looked at.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        faulthandler.disable()
        torch._C._set_print_stack_traces_on_fatal_signal(True)
        os.abort()

    def _captured(self, item: pytest.Item) -> str:
        """Gives what the test has printed until now; the core's own words about a long wait are among it."""
        manager = self._config.pluginmanager.getplugin("capturemanager")
        if manager is None:
            return ""
        manager.suspend_global_capture(item)
        return "".join(f"\nIt printed:\n{text}" for text in manager.read_global_capture() if text)
