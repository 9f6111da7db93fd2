# SPDX-License-Identifier: BSD-3-Clause
"""The tests that `outboard test` runs, and its message about a test that never ends."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from torch_outboard.cli import main
from torch_outboard.testing import driver_test_command, suite

from .contract import ROOT

PYTHON_DRIVER = "examples.pure_python_driver:PythonDriver"
RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:], prog_name='outboard')"


@pytest.fixture
def commands(monkeypatch):
    """Return the commands that `outboard test` would run, without running them."""
    seen = []
    done = subprocess.Popen([sys.executable, "-c", ""])
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: seen.append(command) or done)
    return seen


def invoke(*arguments: str) -> tuple[int, str]:
    answer = CliRunner(env={"COLUMNS": "300"}).invoke(main, ["test", *arguments])
    return answer.exit_code, answer.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("-k", "streams", "-x"),
        ("-vv", "--tb=short", "-ra"),
        ("--durations", "5"),
        ("--", "-o", "log_cli=1", "--time-limit=7", "--operators"),
    ],
)
def test_what_is_pytests_reaches_pytest(commands, arguments):
    assert invoke("made_up", "-o", "devices=4", *arguments) == (0, "")
    (command,) = commands
    wanted = [argument for argument in arguments if argument != "--"]
    assert command[-len(wanted) :] == wanted
    assert "--driver=made_up" in command and "--driver-option=devices=4" in command and "--time-limit=300" in command


def test_a_file_of_the_tests_can_be_named():
    command = driver_test_command("made_up", arguments=["test_streams.py::test_timing", "-x"])
    folder = suite().folder
    assert command[-2:] == [f"{folder}/test_streams.py::test_timing", "-x"] and str(folder) not in command


def test_the_operators_are_beside_the_driver_tests(commands):
    assert invoke("made_up", "--operators", "--time-limit", "0")[0] == 0
    (command,) = commands
    folder = suite("operators").folder
    assert (folder / "test_opinfo.py").is_file()
    assert str(folder) in command and f"--ignore={folder / 'test_compiled.py'}" in command
    assert "--time-limit=0" in command


def test_the_operators_of_a_driver_whose_memory_is_out_of_reach(run_python):
    """They run on copies, which is no failure there: sums, gradients, conversions, kernels after layout changes."""
    names = "forward-index_add-float32 or forward-bool-float32 or forward-linalg.lu_factor-float32"
    driver = "examples.other_process:OtherProcessDriver"
    answer = run_python(RUN, "test", driver, "--operators", "-q", "-k", f"test_entry and ({names})")
    assert "3 passed" in answer.stdout and "failed" not in answer.stdout


def test_what_the_build_installs_is_there():
    rules = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    headers = ("tests/native/check.h", "tests/native/apart.h")
    for name in ("tests/driver", "tests/operators", "tests/native/test_driver.cpp", *headers):
        assert name in rules and (ROOT / name).exists()


def test_what_makes_no_sense_is_reported():
    assert "expected a driver's name before -k, as in: outboard test NAME -k" in invoke("-k", "x", "null")[1]
    assert "use either --operators or --native" in invoke("null", "--native", "--operators")[1]
    assert "has no effect with --native" in invoke("null", "--native", "--time-limit", "3")[1]
    status, output = invoke(PYTHON_DRIVER, "--native")
    assert status == 1 and "has no library" in output
    assert "no driver is called 'nothing'" in invoke("nothing", "--native")[1]


def test_the_program_below_torch(run_python):
    assert shutil.which("g++"), "g++ is needed to compile the native tests"
    answer = run_python(RUN, "test", "null", "--native", "-o", "devices=2", "table_is_whole", "copies_arrive")
    assert answer.stdout == "ok   table_is_whole\nok   copies_arrive\n2 of 2 tests passed\n"
    answer = run_python(RUN, "test", "null", "--native", "-o", "devices=many", "table_is_whole", status=1)
    assert "FAIL table_is_whole" in answer.stdout


HANGING_DRIVER = """
import threading
from unit.toys import Toy

class Hanging(Toy):
    is_hanging = False

    def stream_synchronize(self, device, stream):
        if self.is_hanging:
            threading.Event().wait()
"""
HANGING_TEST = """
import pytest, torch, torch_outboard

@pytest.fixture(autouse=True)
def hanging(device):
    torch.accelerator.synchronize(device)
    torch_outboard.attached_driver().is_hanging = True

def test_it_hangs(device):
    print("said before")
    torch.empty(2, device=device).cpu()
"""


def test_a_wait_that_never_ends_is_reported_with_all_stacks(tmp_path):
    (tmp_path / "hanging.py").write_text(HANGING_DRIVER)
    (tmp_path / "test_hanging.py").write_text(HANGING_TEST)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OUTBOARD_", "PYTEST_"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT / "tests"), *filter(None, sys.path)])
    plugin = ("-p", "torch_outboard.testing.plugin", "-p", "no:cacheprovider", f"--rootdir={tmp_path}")
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "--driver=hanging:Hanging", "--time-limit=3"]
    answer = subprocess.run([*command, tmp_path / "test_hanging.py"], env=environment, capture_output=True, text=True)
    assert answer.returncode == -6, answer.stdout + answer.stderr
    text = answer.stderr
    assert "test_hanging.py::test_it_hangs has not ended within 3 s (--time-limit)." in text
    assert "It printed:\nsaid before" in text
    in_python, _, in_c = text.partition("and in C and C++")
    assert "in stream_synchronize" in in_python and "in test_it_hangs" in in_python
    assert "libtorch_outboard.so" in in_c


WAITS = """
import os, signal, threading
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(device, number):
    if number == 1:
        os.killpg(0, signal.SIGINT)
        threading.Event().wait(30)
"""


def test_ctrl_c_ends_with_the_report_so_far(tmp_path):
    (tmp_path / "test_waits.py").write_text(WAITS)
    command = [sys.executable, "-c", RUN, "test", PYTHON_DRIVER, str(tmp_path / "test_waits.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    # A shell's background jobs ignore SIGINT, and so would their children.
    reset = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, start_new_session=True, preexec_fn=reset
    )
    assert answer.returncode == 2, answer.stderr
    assert "Interrupted: only the first of 3 tests have run." in answer.stdout
    assert "Passed: 1 tests. Failed: 0." in answer.stdout and "Next: " in answer.stdout
