# SPDX-License-Identifier: BSD-3-Clause
"""The runtime of the template `device` in C: waits for a chip that hangs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torch_outboard.testing.plugin import RunPython

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "examples" / "own_chip"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own_chip")
    flags = ["-w", "-O0", "-fPIC", "-D_GNU_SOURCE", f"-I{ROOT / 'include'}", f"-I{SOURCES}"]
    objects = []
    for name in ("driver.c", "chip.cpp", "compiler.cpp"):
        objects.append(str(folder / f"{name}.o"))
        compiler = ["cc"] if name.endswith(".c") else ["c++", "-std=c++20"]
        subprocess.run([*compiler, *flags, "-c", str(SOURCES / name), "-o", objects[-1]], check=True)
    path = folder / "libown_chip.so"
    subprocess.run(["c++", "-shared", *objects, "-o", str(path), "-pthread", "-ldl"], check=True)
    process = [str(SOURCES / "chip_process.cpp"), "-o", str(folder / "chip_process"), "-pthread", "-ldl", "-rdynamic"]
    subprocess.run(["c++", "-std=c++20", *flags, *process], check=True)
    return path


def test_an_idle_stream_is_waited_for_without_the_chip(run_python: RunPython, library: Path) -> None:
    """A driver's wait that asks a chip which hangs cannot be interrupted."""
    run_python(
        f"""
import os, signal, subprocess, threading, torch, torch_outboard

class Chip(torch_outboard.Driver):
    name = "own_chip"
    library = {str(library)!r}

torch_outboard.attach(Chip)
x = torch.ones(4).to("own_chip")
assert x.tolist() == [1.0] * 4
children = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True)
chip = next(int(line.split()[0]) for line in children.stdout.splitlines() if "chip_process" in line)

def wait_for_a_chip_that_hangs():
    # The wait ends by itself or by Ctrl-C.
    os.kill(chip, signal.SIGSTOP)
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    give_up = threading.Timer(20, os._exit, (1,))
    interrupt.start()
    give_up.start()
    try:
        torch.own_chip.synchronize()
        while interrupt.is_alive():
            interrupt.join(0.01)
    except KeyboardInterrupt:
        pass
    give_up.cancel()
    os.kill(chip, signal.SIGCONT)

wait_for_a_chip_that_hangs()  # nothing is queued since a wait
assert x.tolist() == [1.0] * 4
x.copy_(torch.zeros(4))
while not torch.own_chip.current_stream().query():
    pass
wait_for_a_chip_that_hangs()  # nothing is queued since a query
os.kill(chip, signal.SIGSTOP)
x.fill_(3)
wait_for_a_chip_that_hangs()
assert x.tolist() == [3.0] * 4
"""
    )
