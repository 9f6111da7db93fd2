# SPDX-License-Identifier: BSD-3-Clause
"""The end of a process under valgrind: our code makes no invalid access and uses no uninitialised memory.

Each process takes minutes, most of them for the import of torch. Each process therefore does much before it ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import torch_outboard

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = set(Path(torch_outboard.__file__).parent.rglob("*.so"))
# The C and C++ libraries, as valgrind stands in for them and as they are.
SYSTEM = ("vgpreload_", "libc.so", "libc-", "libm.so", "libstdc++.so", "libpthread")

START = """
import sys, torch, torch_outboard
module = torch_outboard.attach(sys.argv[1])
device = torch_outboard.attached_driver().name
x = torch.randn(16, 16, device=device, requires_grad=True)
kept = [torch.ones(3, device=f"{device}:1"), torch.ones(1 << 12).pin_memory()]
"""
BACKWARD = "(x @ x).sum().backward()\n"
# Each by its own stream, so that none waits for another before the end.
STREAMS = """
side, event = module.Stream(), module.Event(enable_timing=True)
with module.stream(side):
    for _ in range(50):
        y = x.detach() @ x.detach()
    event.record()
    kept.append(kept[1].to(device, non_blocking=True))
values, labels = torch.randn(5, 7, device=device), torch.randint(0, 7, (5,), device=device)
loss, weight = torch.ops.aten.nll_loss_forward(values, labels, None, 1, -100)
"""
GRAPHS = """
replayed, dropped, unfinished = module.Graph(), module.Graph(), module.Graph()
with module.graph(replayed):
    y = torch.rand_like(kept[0]) + kept[0]
with module.graph(dropped):
    z = kept[0] * 2
for _ in range(20):
    replayed.replay()
    dropped.replay()
del dropped
module.Stream().__enter__()
unfinished.capture_begin()
w = kept[0] + 1
"""
LAST = "print('the last line')\n"
PYTHON = "examples.pure_python_driver:PythonDriver"
# Where work runs on a thread of the driver, where it waits for somebody to ask,
# and where the driver is Python.
PROCESSES = {
    "running streams and an unfinished graph": ("sim", START + STREAMS + BACKWARD + GRAPHS + LAST, {}),
    "work that nobody waits for": ("sim", START + BACKWARD + STREAMS + LAST, {"OUTBOARD_SIM_SCHEDULE": "lazy:3"}),
    "a driver in Python": (PYTHON, START + STREAMS + BACKWARD + LAST, {}),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_it_is_clean(process, tmp_path):
    driver, code, options = PROCESSES[process]
    status, output, errors = run(code, driver, tmp_path, options, LIBRARIES)
    assert status == 0, output
    assert output == "the last line\n"
    assert not errors, f"{len(errors)} errors, of which the first are\n" + "\n\n".join(errors[:5])


PLANTED = """
#include <stdlib.h>
int use_after_free(void) {
  volatile int* memory = calloc(4, sizeof(int));
  free((void*)memory);
  return memory[1];
}
int uninitialised(void) {
  volatile int* memory = malloc(4 * sizeof(int));
  int result = memory[1] > 3 ? 1 : 2;
  free((void*)memory);
  return result;
}
"""
ERRORS = {"use_after_free": "Invalid read of size 4", "uninitialised": "depends on uninitialised value"}


@pytest.mark.parametrize("error", ERRORS)
def test_a_planted_error_is_reported(error, tmp_path):
    library = tmp_path / "libplanted.so"
    (tmp_path / "planted.c").write_text(PLANTED)
    subprocess.run(["gcc", "-O0", "-g", "-fPIC", "-shared", tmp_path / "planted.c", "-o", library], check=True)
    code = "import ctypes, sys; getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])(); print('ran')"
    status, output, errors = run(code, str(library), tmp_path, {}, {library}, error)
    assert (status, output) == (0, "ran\n")
    assert len(errors) == 1 and ERRORS[error] in errors[0], errors
    assert not run(code, str(library), tmp_path, {}, LIBRARIES, error)[2]


def run(
    code: str, argument: str, folder: Path, options: dict[str, str], libraries: set[Path], *more: str
) -> tuple[int, str, list[str]]:
    """Run Python under valgrind and return its status, its output, and the errors of these libraries."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("valgrind is not installed. CONTRIBUTING.md says how")
    report = folder / "errors.xml"
    # Threads take turns: with valgrind's own lock the one that looks
    # for work would starve the others.
    command = [valgrind, "--xml=yes", f"--xml-file={report}", "--fair-sched=yes", "--num-callers=40"]
    # Python frees nothing of its own at its end. XML has no way to leave out the search.
    command += ["--show-leak-kinds=none", "--errors-for-leak-kinds=none"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OUTBOARD_")} | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        # Python's own pools would hide uses after a free, and read memory that is not theirs.
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "1",
        **options,
    }
    done = subprocess.run(
        [*command, sys.executable, "-c", code, argument, *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
    )
    return (
        done.returncode,
        done.stdout,
        [text(error) for error in ElementTree.parse(report).iter("error") if is_of(libraries, error)],
    )


def is_of(libraries: set[Path], error: ElementTree.Element) -> bool:
    """Return whether one of the libraries made the access, is on its stack, or allocated or freed that memory.

    An uninitialised value counts only if the libraries, or the C library for them, use it. Python reads digits of
    integers that it has not written, and its results from them spread everywhere.
    """
    # The first is of the access; further ones say where the memory was allocated or freed.
    stacks = [[Path(frame.findtext("obj", "")) for frame in stack.iter("frame")] for stack in error.iter("stack")]
    access = [path for path in stacks[0] if not path.name.startswith(SYSTEM)]
    if error.findtext("kind", "").startswith("Uninit"):
        return access[:1] != [] and access[0] in libraries
    # The loader reads its own strings by words.
    return not stacks[0][0].name.startswith("ld-") and any(path in libraries for stack in stacks for path in stack)


def text(error: ElementTree.Element) -> str:
    message = error.findtext("what") or error.findtext("xwhat/text") or error.findtext("kind", "")
    frames = [f"  {frame.findtext('fn')} ({frame.findtext('obj')})" for frame in error.iter("frame")]
    return "\n".join([message, *frames])
