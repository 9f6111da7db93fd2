# SPDX-License-Identifier: BSD-3-Clause
"""A time limit for each test. If a test hangs, the watchdog prints the stacks of all threads and ends the process.

A wait that never ends is the most common fault of a new driver. It hangs below Python, where no exception can be
raised, and Python's stacks alone do not show which driver entry it waits for.
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

# Seconds for the reporting thread to acquire the interpreter lock; after that, only Python's stacks
# are written.
_GRACE_SECONDS = 10

# torch's handler for fatal signals, which prints C stacks, needs more than the 16 KiB that
# faulthandler reserves for the main thread's handlers: it would overflow into the heap.
_SIGNAL_STACK = 1 << 20


class _StackT(ctypes.Structure):
    _fields_ = (("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t))


class Watchdog:
    """Ends the process if a test, including its fixtures, takes longer than `seconds`."""

    def __init__(self, config: pytest.Config, seconds: float) -> None:
        self._config = config
        self._seconds = seconds
        # The process's own stderr: while a test runs, pytest redirects fd 2 to its own file.
        self._stderr = os.dup(2)
        self._signal_stack = mmap.mmap(-1, _SIGNAL_STACK)

    def pytest_runtestloop(self) -> None:
        """Set a signal stack for the main thread, after pytest's faulthandler has set one."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._signal_stack))
        stack = _StackT(ss_sp=address, ss_flags=0, ss_size=_SIGNAL_STACK)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.sigaltstack(ctypes.byref(stack), None) != 0:
            raise OSError(ctypes.get_errno(), "sigaltstack failed")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        timer = threading.Timer(self._seconds, self._dump_stacks, (item,))
        timer.daemon = True
        timer.start()
        # This thread is in C, and needs no interpreter lock.
        faulthandler.dump_traceback_later(self._seconds + _GRACE_SECONDS, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            timer.cancel()
            faulthandler.cancel_dump_traceback_later()

    def _dump_stacks(self, item: pytest.Item) -> None:
        output = self._captured(item)
        os.dup2(self._stderr, 2)
        text = f"\n{item.nodeid} has not ended within {self._seconds:g} s (--time-limit).\n"
        os.write(2, f"{text}{output}\nIts threads, in Python:\n".encode())
        faulthandler.dump_traceback(file=2)
        os.write(2, b"\nand in C and C++, down to the driver's entry that is waited for:\n")
        # Nobody reads a core dump.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        faulthandler.disable()
        torch._C._set_print_stack_traces_on_fatal_signal(True)
        os.abort()

    def _captured(self, item: pytest.Item) -> str:
        """Return the test's output so far, including the core's messages about long waits."""
        manager = self._config.pluginmanager.getplugin("capturemanager")
        if manager is None:
            return ""
        manager.suspend_global_capture(item)
        return "".join(f"\nIt printed:\n{text}" for text in manager.read_global_capture() if text)
