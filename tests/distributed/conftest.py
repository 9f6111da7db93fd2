# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures that run a program of `programs/` as the ranks of a group, two unless a test asks for more.

Each rank is a process that has already imported torch.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torch_outboard.testing.fork_server import ForkServer

TESTS = Path(__file__).resolve().parent.parent
PROGRAM = "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
# Of a process that hangs. What fails is timed by the programs; import and
# compilation take long beside other work.
LIMIT = 120.0
# ThreadSanitizer ends a forked child that starts a thread: there each rank imports torch.
SPAWNS = "TEST_SPAWN" in os.environ
ONE_MAPPING = {"single_mapping": "True"}  # it knows memory by its address
# Of the stacks, whose imports take a second in each process.
PRELOADED = ("torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor.parallel")

Answers = list[subprocess.CompletedProcess[str]]
RunRanks = Callable[..., Answers]

# The ways to the devices' memory: the driver, its options, the environment.
HOST = ("sim", {}, {})
# The simulated device's own collectives.
OWN = ("sim", {"collectives": "True"}, {})
# What the host could reach is copied all the same.
STAGED = ("sim", {}, {"OUTBOARD_PROVIDERS": "native"})
APART = ("opencl", {"host_access": "False"}, {})


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OUTBOARD_", "PYTEST_"))}
    return {
        **kept,
        # The package that is tested, which may be an installed one, before the source tree's.
        "PYTHONPATH": os.pathsep.join(
            [str(TESTS), *(entry for entry in sys.path if entry), str(TESTS.parent), str(TESTS.parent / "examples")]
        ),
        "PYTHONFAULTHANDLER": "1",
        "OUTBOARD_KERNEL_CACHE_DIR": "",
        "OUTBOARD_KERNEL_PACKS": "",
        "OUTBOARD_FALLBACK": "silent",
        "OMP_NUM_THREADS": "1",
    }


# Else the operating system offers a port again, maybe to another worker, before a program listens.
HELD: list[socket.socket] = []


def free_port() -> int:
    """Return a port on which a store may listen, and which nobody else is offered during the run."""
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    # A listener that asks for the same, as torch's does, may bind the port too.
    free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    HELD.append(free)
    return int(free.getsockname()[1])


@pytest.fixture(scope="session", autouse=True)
def _returns_ports() -> Iterator[None]:
    yield
    for listener in HELD:
        listener.close()


@pytest.fixture(scope="session")
def _servers() -> Iterator[list[ForkServer]]:
    servers: list[ForkServer] = []
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def run_ranks(_servers: list[ForkServer], tmp_path: Path) -> RunRanks:
    """Return a function that runs a program and returns the output of each rank, whose number is that of `statuses`.

    run_ranks("collectives", *arguments, way=HOST, statuses=(0, 0))
    """

    def run(program, *arguments, way=HOST, statuses=(0, 0), env=None, limit=LIMIT) -> Answers:
        driver, options, variables = way
        path = str(TESTS / "distributed" / "programs" / f"{program}.py")
        shared = {
            **environment(),
            **variables,
            **(env or {}),
            "TEST_DRIVER": driver,
            "TEST_OPTIONS": json.dumps({**options, **(ONE_MAPPING if SPAWNS and driver == "sim" else {})}),
            "TEST_STORE": str(tmp_path / "store"),
            "TEST_PORT": str(free_port()),
            "WORLD_SIZE": str(len(statuses)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }

        def run_rank(rank: int) -> subprocess.CompletedProcess[str]:
            ranked = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            if SPAWNS:
                command = [sys.executable, path, *arguments]
                return subprocess.run(command, env=ranked, capture_output=True, text=True, timeout=10 * limit)
            return _servers[rank].run(PROGRAM, ("-", path, *arguments)[1:], ranked, limit)

        while len(_servers) < len(statuses) and not SPAWNS:
            _servers.append(ForkServer(environment(), TESTS.parent, imports=PRELOADED))
        with ThreadPoolExecutor(len(statuses)) as pool:
            answers = list(pool.map(run_rank, range(len(statuses))))
        if tuple(answer.returncode for answer in answers) != statuses:
            texts = [f"rank {i}: {a.returncode}\n{a.stdout}\n{a.stderr}" for i, a in enumerate(answers)]
            pytest.fail("\n".join(texts), pytrace=False)
        return answers

    return run
