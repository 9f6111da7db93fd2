# SPDX-License-Identifier: BSD-3-Clause
"""The thread on which plans are built."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from torch_outboard import _C

__all__ = ["BuildThread", "NoThread"]

_log = logging.getLogger(__name__)

# Seconds that the end of the process waits for a running build.
_PATIENCE = 10.0


class NoThread(Exception):
    """The process cannot start a thread: its limit is reached, or the process ends."""


class _Ended(SystemExit):
    """Ends a build at the end of the process. It is no Exception, which the builder would turn into a refusal."""


class BuildThread:
    """A thread that runs functions one after the other. It starts with the first function, and never returns.

    A thread that has traced and returns would destroy state that autograd still uses, also at the end of the process.
    In a build for CUDA without a GPU, a FakeTensorMode sets a CUDA guard that belongs to the thread
    (`ensureCUDADeviceGuardSet` in torch's c10/core/impl/DeviceGuardImplInterface.cpp, seen with 2.11). So it is no
    ThreadPoolExecutor, whose threads Python joins.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_busy = False
        self._is_over = False
        self.seconds = 0.0  # that functions have run
        self._has_left = threading.Event()  # set outside torch's code

    def run(self, function: Callable[[], Any]) -> Any:
        self._start()
        future: Future[Any] = Future()
        self._waiting.put((future, function))
        return future.result()

    def end(self) -> None:
        """End the thread's current function, and run no other function from then on.

        Python ends its threads in the middle of a C++ function. If the thread is within torch then, the process aborts.
        After Ctrl-C, a build goes on in the thread although no caller waits for it.
        """
        with self._lock:
            self._is_over = True
            thread = self._thread
        if thread is None:
            return
        self._waiting.put(None)
        if self._is_busy:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Ended))
        if not self._has_left.wait(_PATIENCE):
            _log.warning("a plan was still being built %g s after the process should have ended", _PATIENCE)

    def _start(self) -> None:
        with self._lock:
            if self._is_over:
                raise NoThread("the process is exiting, so no plan is built [no-thread]")
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._work, name="torch_outboard.kernels", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise NoThread(f"no thread could be started to build its plan: {error} [no-thread]") from error
            self._thread = thread

    def _work(self) -> None:
        # Operators that a build calls go to the next provider. Otherwise
        # the thread would wait for itself.
        _C.forbid_compiling()
        with contextlib.suppress(_Ended):
            while (asked := self._waiting.get()) is not None:
                future, function = asked
                del asked
                self._is_busy = True
                start = time.perf_counter()
                try:
                    answer = function()
                except BaseException as error:  # noqa: BLE001 - the waiting caller raises it
                    answer = error
                self._is_busy = False
                self.seconds += time.perf_counter() - start
                # Drop the call's arguments before the caller goes on, which may free their memory.
                del function
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
                del future, answer
        forever = threading.Lock()
        forever.acquire()
        while True:
            with contextlib.suppress(_Ended):
                self._has_left.set()
                forever.acquire()
