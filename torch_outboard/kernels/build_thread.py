# SPDX-License-Identifier: BSD-3-Clause
"""The thread that builds plans."""

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

# Seconds that the process waits for a running build before it exits.
_EXIT_TIMEOUT_SECONDS = 10.0


class NoThread(Exception):
    """The process cannot start a thread: its limit is reached, or the process is exiting."""


class _Ended(SystemExit):
    """Ends a build when the process exits. Not an Exception, which the builder would turn into a refusal."""


class BuildThread:
    """A thread that runs functions one after the other. The first function starts the thread, which then never returns.

    If a thread returned after tracing, even at process exit, it would destroy state that autograd still uses. In a CUDA
    build without a GPU, FakeTensorMode sets a thread-local CUDA guard (`ensureCUDADeviceGuardSet` in torch's
    c10/core/impl/DeviceGuardImplInterface.cpp, seen with 2.11). A ThreadPoolExecutor would not work, because Python
    joins its threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_busy = False
        self._is_over = False
        self.seconds = 0.0  # total running time of the functions
        self._has_left = threading.Event()  # set outside torch's code

    def run(self, function: Callable[[], Any]) -> Any:
        self._start()
        future: Future[Any] = Future()
        self._waiting.put((future, function))
        return future.result()

    def end(self) -> None:
        """Stop the thread's current function, and run no further function.

        At exit, Python may end a thread in the middle of a C++ function; inside torch, this aborts the process. After
        Ctrl-C, a build continues in the thread although no caller waits for it.
        """
        with self._lock:
            self._is_over = True
            thread = self._thread
        if thread is None:
            return
        self._waiting.put(None)
        if self._is_busy:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Ended))
        if not self._has_left.wait(_EXIT_TIMEOUT_SECONDS):
            _log.warning("a plan was still being built %g s after the process should have ended", _EXIT_TIMEOUT_SECONDS)

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
        # Operators that a build calls go to the next provider. Otherwise the thread would wait for
        # itself.
        _C.forbid_compiling()
        with contextlib.suppress(_Ended):
            while (request := self._waiting.get()) is not None:
                future, function = request
                del request
                self._is_busy = True
                start = time.perf_counter()
                try:
                    answer = function()
                except BaseException as error:  # noqa: BLE001 - the waiting caller raises it
                    answer = error
                self._is_busy = False
                self.seconds += time.perf_counter() - start
                # Drop the call's arguments before the caller resumes: the caller may free their
                # memory.
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
