# SPDX-License-Identifier: BSD-3-Clause
"""Processes that fill one folder at once build each plan and each program once."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from torch_outboard.kernels.disk.store import Store
from torch_outboard.testing.plugin import RunPython

from .test_plan_store import ANSWER, SIZES
from .test_program_store import BEGIN

# Each child of a fork runs `work` once all are there, and returns a value of JSON.
CHILDREN = """
import json, os, pathlib, signal, sys, time
os.environ["OUTBOARD_KERNEL_CACHE_DIR"] = sys.argv[1]
import torch, torch_outboard
from torch_outboard import _C

def children(count, work):
    opened, close = os.pipe()
    results = []
    for number in range(count):
        result, answer = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(close)
                os.read(opened, 1)  # all of them begin
                os.write(answer, json.dumps(work(number)).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(answer)
        results.append((child, result))
    os.close(close)
    found = []
    for child, result in results:
        with os.fdopen(result) as text:
            answer = text.read()
        if os.waitpid(child, 0)[1] == 0:
            found.append(json.loads(answer))
    return found
"""

PROGRAMS = (
    CHILDREN
    + BEGIN.replace(
        "driver = Keeping()",
        """
log = pathlib.Path(sys.argv[1]).parent / "built"

class Counting(Keeping):
    def program_build(self, device, language, code, options):
        if language != "binary":
            with log.open("a") as file:
                file.write(code.decode() + "\\n")
            self.compile(code)
        return super().program_build(device, language, code, options)

    def compile(self, code):
        time.sleep(0.02)

driver = Counting()
""",
    )
    + """
texts = [str(number) for number in range(5)]
"""
)


def run(run_python: RunPython, code: str, folder: Path) -> Any:
    return json.loads(run_python(code, str(folder)).stdout.splitlines()[-1])


def test_twelve_processes_build_each_program_once(run_python: RunPython, tmp_path: Path) -> None:
    code = """
print(json.dumps(children(12, lambda number: sum([built(0, text) for text in texts], []))))
"""
    reports = run(run_python, PROGRAMS + code, tmp_path / "cache")
    assert len(reports) == 12 and all(len(built) == 5 for built in reports)
    lines = (tmp_path / "built").read_text().splitlines()
    assert sorted(lines) == [f"def f(*values): {number}" for number in range(5)]
    file_names = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(file_names) == 5 and not any(name.endswith(".locked") for name in file_names), file_names


@pytest.mark.parametrize("how", ["dies", "stores nothing", "refuses"])
def test_nobody_waits_for_one_that_fails(run_python: RunPython, tmp_path: Path, how: str) -> None:
    code = f"""
how = {how!r}

def work(number):
    def compile(code):
        if not (folder.parent / "first").exists():
            (folder.parent / "first").touch()
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
        if how == "refuses":
            raise torch_outboard.DriverError("line 3: what?", torch_outboard.Status.PROGRAM_REFUSED)

    driver.compile = compile
    driver.hands_out = how != "stores nothing"
    try:
        return built(0, "1")
    except ValueError as error:
        return "line 3: what?" in str(error)

found = children(4, work)
print(json.dumps(found))
"""
    reports = run(run_python, PROGRAMS + code, tmp_path / "cache")
    alone = {"dies": 3, "stores nothing": 4, "refuses": 4}[how]
    assert len(reports) == alone and all(reports), reports


PLANS = (
    CHILDREN
    + """
from torch_outboard.kernels import plan_statistics
from tests.simt_drivers import Unbuilt
torch_outboard.attach(Unbuilt())
os.cpu_count = lambda: 2

def work(number):
    x = torch.ones(4, 5, device="unbuilt")
    x.erfinv()
    torch._foreach_lgamma([x])
    return {**plan_statistics(), "inductor": "torch._inductor.compile_fx" in sys.modules}
"""
)


def test_twelve_processes_build_each_plan_once(run_python: RunPython, tmp_path: Path) -> None:
    reports = run(run_python, PLANS + "\nprint(json.dumps(children(12, work)))\n", tmp_path)
    # A fill of ones may need a plan too.
    total = {result["plans"] for result in reports}
    assert len(reports) == 12 and len(total) == 1, reports
    assert sum(result["saved"] for result in reports) == total.pop(), reports
    # At each of the two plans as many begin to import as there are processors.
    assert sum(result["inductor"] for result in reports) <= 4, reports
    assert not list(tmp_path.rglob("*.part"))


def test_nobody_waits_for_a_process_that_imports(tmp_path: Path) -> None:
    ours, theirs, calls = Store(tmp_path), Store(tmp_path), []

    def prepare() -> None:
        calls.append("ours")
        with theirs.build_lock("a", prepare=lambda: calls.append("theirs")) as is_stored:
            assert not is_stored
            theirs.save("a", SIZES, ANSWER)

    assert ours.plans("a") == theirs.plans("a") == []
    with ours.build_lock("a", prepare=prepare) as is_stored:
        assert is_stored and ours.plans("a") == [ANSWER]
    with ours.build_lock("a", prepare=None) as is_stored:
        assert not is_stored, "it has read them"
    assert calls == ["ours", "theirs"]


def test_who_waits_for_a_build_imports_nothing(tmp_path: Path) -> None:
    ours, theirs = Store(tmp_path), Store(tmp_path)
    assert ours.plans("a") == []

    def build(begun: threading.Event) -> None:
        with theirs.build_lock("a", prepare=None):
            begun.set()
            time.sleep(0.1)
            theirs.save("a", SIZES, ANSWER)

    begun = threading.Event()
    builder = threading.Thread(target=build, args=(begun,))
    builder.start()
    assert begun.wait(60)
    with ours.build_lock("a", prepare=lambda: pytest.fail("it waits instead")) as is_stored:
        assert is_stored
    builder.join()
