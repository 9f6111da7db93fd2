# SPDX-License-Identifier: BSD-3-Clause
"""Runs of a program in child processes, several at a time."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch_outboard
from torch_outboard._options import environment_name
from torch_outboard.testing.fork_server import ForkServer

__all__ = ["CAPABILITY", "Program", "Run", "Runner"]

CAPABILITY = (9, 0)  # compute capability that programs for CUDA see by default

_CHILD = "import sys; from torch_outboard.race.child import main; main(sys.argv[1])"
# Modules that every run would otherwise import, which takes seconds. Attaching needs them, except
# the last module, which an optimizer needs.
_IMPORTED = (
    *("torch_outboard", "torch_outboard.compile.register", "torch_outboard.device", "torch_outboard.distributed"),
    *("torch_outboard.race.child", "torch_outboard.sanitizer", "torch_outboard.testing.observed", "torch._dynamo"),
)
_MAX_OUTPUT_CHARACTERS = 1 << 20  # characters kept of each output stream


@dataclass(frozen=True)
class Program:
    """A program to run: a script's path, a module's name, or pytest's arguments."""

    kind: str  # "script", "module", "pytest"
    target: str
    arguments: tuple[str, ...] = ()
    as_cuda: tuple[int, int] | None = None  # the compute capability, for programs written for CUDA

    @property
    def words(self) -> list[str]:
        """The command-line words that select the program."""
        options = [] if self.as_cuda is None else ["--as-cuda"]
        if self.as_cuda not in (None, CAPABILITY):
            options += ["--capability", *map(str, self.as_cuda or ())]
        return [*options, *(["-m"] if self.kind == "module" else []), self.target, *self.arguments]


@dataclass(frozen=True)
class Run:
    """A run's results. `ended` is "exit", "signal", or "time" if the run exceeded the time limit."""

    options: Mapping[str, str]
    ended: str
    status: int
    output: str
    errors: str
    seconds: float
    answer: Mapping[str, Any] = field(default_factory=dict)  # empty if the program ended its own process

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    @property
    def ending(self) -> str:
        """A description of how the run ended."""
        if self.ended == "time":
            return f"had not ended after {self.seconds:.0f} s"
        if self.ended == "signal":
            return f"was ended by the signal {signal.Signals(self.status).name}"
        return f"exited with status {self.status}"


class Runner:
    """Runs programs in up to `jobs` processes at a time. Each is forked from a process that has imported torch.

    `driver` is attached; its devices are called `name`. `limit` is the time limit of a run in seconds. With
    `owns_folder`, each run has its own folder; otherwise, runs use the current one. `stdin` is a file that programs
    read, or "".
    """

    def __init__(
        self, driver: str, name: str, jobs: int, limit: float, owns_folder: bool = False, stdin: str = ""
    ) -> None:
        self._driver, self._name = driver, name
        self.limit, self.owns_folder, self.stdin = limit, owns_folder, stdin
        self._scratch = tempfile.TemporaryDirectory(prefix="outboard-race-")
        self._servers = [ForkServer(self._environment({}), Path.cwd(), _IMPORTED) for _ in range(jobs)]
        self._idle: queue.SimpleQueue[ForkServer] = queue.SimpleQueue()
        for server in self._servers:
            self._idle.put(server)
        self._processes: set[Path] = set()  # files with the ids of running processes
        self._is_closed = False

    def run(
        self, program: Program, options: Mapping[str, str], sanitizes: bool = False, is_faulted: bool = False
    ) -> Run:
        """Run a program with these driver options.

        With `is_faulted`, examine the state that the program leaves behind. Thread-safe.
        """
        server = self._idle.get()
        try:
            with tempfile.TemporaryDirectory(dir=self._scratch.name) as folder:
                switches = {"sanitizes": sanitizes, "is_faulted": is_faulted}
                return self._run(server, Path(folder), program, options, switches)
        finally:
            self._idle.put(server)

    def cancel(self) -> None:
        """End all current runs, and return when they have ended. No further run can start."""
        self._is_closed = True
        while processes := list(self._processes):  # a run that has not begun has no process id yet
            for process in processes:
                _end(process)
            time.sleep(0.05)

    def close(self) -> None:
        """End all current runs, and remove their files."""
        self.cancel()
        for _ in self._servers:
            self._idle.get().close()
        self._scratch.cleanup()

    def _run(
        self,
        server: ForkServer,
        folder: Path,
        program: Program,
        options: Mapping[str, str],
        switches: Mapping[str, bool],
    ) -> Run:
        answer, process, request = folder / "answer.json", folder / "process", folder / "request.json"
        own = folder / "run"
        if self.owns_folder:
            own.mkdir()
        wanted = {
            "driver": self._driver,
            "kind": program.kind,
            "target": os.path.abspath(program.target) if program.kind == "script" else program.target,
            "arguments": program.arguments,
            "as_cuda": program.as_cuda,
            **switches,
            "answer": str(answer),
            "process": str(process),
            "folder": str(own if self.owns_folder else Path.cwd()),
            "stdin": os.path.abspath(self.stdin) if self.stdin else "",
        }
        request.write_text(json.dumps(wanted), encoding="utf-8")
        start = time.monotonic()
        ended = "exit"
        with self._watched(process):
            try:
                done = server.run(_CHILD, [str(request)], self._environment(options), self.limit)
                status, output, errors = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired as error:
                ended, status = "time", 0
                output, errors = str(error.output or ""), str(error.stderr or "")
        if ended == "exit" and status < 0:
            ended, status = "signal", -status
        results = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() and ended == "exit" else {}
        return Run(
            options,
            ended,
            status,
            output[-_MAX_OUTPUT_CHARACTERS:],
            errors[-_MAX_OUTPUT_CHARACTERS:],
            time.monotonic() - start,
            results,
        )

    @contextlib.contextmanager
    def _watched(self, process: Path) -> Iterator[None]:
        """End the processes started by a run when the run ends or the runner is closed."""
        self._processes.add(process)
        try:
            if self._is_closed:
                raise RuntimeError("the runner is closed")
            yield
        finally:
            _end(process)
            self._processes.discard(process)

    def _environment(self, options: Mapping[str, str]) -> dict[str, str]:
        package = str(Path(torch_outboard.__file__).parent.parent)
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        return {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONHASHSEED": "0",
            "PYTHONFAULTHANDLER": "1",
            "OUTBOARD_DRIVER": self._driver,  # for processes that the program starts
            **{environment_name(self._name, option): value for option, value in options.items()},
        }


def _end(process: Path) -> None:
    """End the remaining processes of a run."""
    try:
        group = int(process.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # the process has not begun
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
