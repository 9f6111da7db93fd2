# SPDX-License-Identifier: BSD-3-Clause
"""Python processes for tests' snippets, forked from a process that has imported torch: an import takes seconds each.

A child is equal to `python -c CODE` after `import torch`, and after imports of further torch modules if requested. It
has imported torch's modules only. It has its own environment and arguments, loads torch's backends as `import torch`
does, and finalizes the interpreter at the end. Variables that Python or torch read at their start must equal the
server's (`ForkServer.takes`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["COMPILER", "ForkServer", "seconds_of_children"]

# The `imports` of processes that compile. They take three seconds. The function asks which vector
# instructions the compiler knows and the CPU has: two seconds for each process that compiles C++.
COMPILER = ("torch._inductor.compile_fx", "torch._inductor.cpu_vec_isa:valid_vec_isa_list")

# Variables that are read when a driver is attached, by a test's libraries, when code is compiled,
# when a table is printed, or by pytest alone.
_READ_LATE = (
    "OUTBOARD_",
    "FAKE_",
    "OB_",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "COLUMNS",
    "PYTEST_",
)
# Variables that are read when torch's compiler is imported.
_READ_BY_THE_COMPILER = "TORCHINDUCTOR_"


# The processor time of the ended children of all servers. The operating system charges it
# to a server, and to this process only once the server ends.
_seconds = 0.0


def seconds_of_children() -> float:
    """Return the processor time, in seconds, of the ended children of this process's running servers."""
    return _seconds


class ForkServer:
    """A process that has imported torch and `imports`, and forks; takes one request at a time, from one thread.

    An import is a module, or "module:function" to call a function of it as well.

    Each child begins with `seed` in torch's generator of the CPU.
    """

    def __init__(
        self, environment: Mapping[str, str], folder: Path, imports: Sequence[str] = (), seed: int = 0
    ) -> None:
        self._seconds = 0.0
        self._read_late = (*_READ_LATE, *([] if imports else [_READ_BY_THE_COMPILER]))
        self._environment = self._read_early(environment)
        self._socket, theirs = socket.socketpair()
        source = Path(__file__).with_name("_fork_server_main.py").read_text(encoding="utf-8")
        with theirs:
            # Run by its text, not its path: a child that starts processes must have no
            # main module for them to import.
            self._process = subprocess.Popen(
                [sys.executable, "-c", source, str(theirs.fileno()), str(seed), *imports],
                # Imports ask whether there is CUDA. The question by CUDA itself would start it, and
                # then no child could; by NVML it starts nothing.
                env={
                    **self._environment,
                    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
                    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=folder,
            )

    def takes(self, environment: Mapping[str, str]) -> bool:
        """Return True if a process with this environment may be forked from this server."""
        return self._process.poll() is None and self._read_early(environment) == self._environment

    def run(
        self, code: str, arguments: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a snippet and return its status and output.

        Raises subprocess.TimeoutExpired, with the output, if the snippet runs longer than `timeout` seconds; SIGABRT
        ends it.
        """
        request = json.dumps([code, list(arguments), dict(environment)]).encode()
        command = [sys.executable, "-c", code, *arguments]
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            socket.send_fds(self._socket, [struct.pack("=q", len(request))], [output.fileno(), errors.fileno()])
            self._socket.sendall(request)
            status = self._wait(self._read(), timeout)
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        if status is None:
            raise subprocess.TimeoutExpired(command, timeout, *texts)
        return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(status), *texts)

    def close(self) -> None:
        """End the server. A child that still runs after an interrupted test ends first."""
        global _seconds
        self._socket.close()
        self._process.wait()
        _seconds -= self._seconds  # the operating system charges them to this process from now on

    def _read_early(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {key: value for key, value in environment.items() if not key.startswith(self._read_late)}

    def _wait(self, process: int, timeout: float) -> int | None:
        """Return the child's status as os.wait would, or None if the child exceeded the timeout and was killed."""
        try:
            status: int | None = self._read(timeout)
        except TimeoutError:
            os.kill(process, signal.SIGABRT)
            self._read()
            status = None
        except BaseException:  # raised again, once the server is ready for the next request
            os.kill(process, signal.SIGKILL)
            self._read()
            self._charge()
            raise
        self._charge()
        return status

    def _charge(self) -> None:
        global _seconds
        seconds = self._read() / 1e6
        self._seconds += seconds
        _seconds += seconds

    def _read(self, timeout: float | None = None) -> int:
        self._socket.settimeout(timeout)
        answer = self._socket.recv(8, socket.MSG_WAITALL)
        if len(answer) < 8:
            raise RuntimeError(f"the process that forks ended with status {self._process.wait()}")
        return int(struct.unpack("=q", answer)[0])
