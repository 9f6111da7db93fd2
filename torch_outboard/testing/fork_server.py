# SPDX-License-Identifier: BSD-3-Clause
"""Python processes for tests' snippets, forked from a process that has imported torch, which takes seconds.

A child behaves like `python -c CODE` after `import torch`, and after imports of further torch modules if requested. It
has imported only torch's modules. It has its own environment and arguments, loads torch's backends as `import torch`
does, and finalizes the interpreter at the end. Variables that Python or torch read at startup must equal the server's
(`ForkServer.takes`).
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

# The `imports` of processes that compile, which take three seconds. The function determines which
# vector instructions the compiler and the CPU support: two seconds for each process that compiles
# C++.
COMPILER = ("torch._inductor.compile_fx", "torch._inductor.cpu_vec_isa:valid_vec_isa_list")

# Variables that are read only when a driver is attached, by a test's libraries, when code is
# compiled, when a table is printed, or by pytest.
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


# Processor time of the ended children of all servers. The operating system charges it to a server,
# and to this process only once the server ends.
_seconds = 0.0


def seconds_of_children() -> float:
    """Return the processor time, in seconds, of the ended children of this process's running servers."""
    return _seconds


class ForkServer:
    """A process that has imported torch and `imports`, and forks. It takes one request at a time, from one thread.

    An import is a module, or "module:function" to also call a function of the module.

    Each child starts with `seed` in torch's CPU generator.
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
            # Run from text instead of a path: processes that a child starts must find no main
            # module to import.
            self._process = subprocess.Popen(
                [sys.executable, "-c", source, str(theirs.fileno()), str(seed), *imports],
                # Imports check for CUDA. A check through CUDA itself would start it, after which no
                # child could; NVML starts nothing.
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
        """Return True if this server may fork a process with this environment."""
        return self._process.poll() is None and self._read_early(environment) == self._environment

    def run(
        self, code: str, arguments: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a snippet, and return its status and output.

        Raises subprocess.TimeoutExpired, with the output, if the snippet runs longer than `timeout` seconds. SIGABRT
        then ends the snippet.
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
        """End the server. A child that still runs after an interrupted test is ended first."""
        global _seconds
        self._socket.close()
        self._process.wait()
        _seconds -= self._seconds  # from now on, the operating system charges them to this process

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
        except BaseException:  # re-raised once the server is ready for the next request
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
            raise RuntimeError(f"the fork server ended with status {self._process.wait()}")
        return int(struct.unpack("=q", answer)[0])
