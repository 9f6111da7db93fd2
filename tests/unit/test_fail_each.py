# SPDX-License-Identifier: BSD-3-Clause
"""`outboard run --fail-each`: what it counts, what it calls wrong, its bounds and exit statuses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from torch_outboard.cli import main
from torch_outboard.race import fault_report
from torch_outboard.race.counts import read_counts, rules_of, select_rules
from torch_outboard.race.faults import FaultPlan, Sweep, sweep
from torch_outboard.race.runs import Program, Runner
from torch_outboard.race.search import ProgramFailed, SearchRefused
from torch_outboard.testing.share import Share

pytestmark = pytest.mark.database

STEP = Path(__file__).parent.parent / "faults" / "training_step.py"
TWO_RANKS = STEP.with_name("two_ranks.py")
_IS_LONG = os.environ.get("OUTBOARD_TEST_LONG") == "1"
HEAD = """
import os, sys, torch, torch_outboard
from torch_outboard.testing import observe
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    started = Runner("sim", "sim", jobs=2, limit=60)
    yield started
    started.close()


def run(
    runner: Runner, path: Path, *rules: str, schedule: str = "inline", most: int = 500, share: str = "1/1"
) -> Sweep:
    plan = FaultPlan(
        Program("script", str(path)),
        "sim",
        {"schedule": schedule, "poison": "1"},
        ("OUT_OF_MEMORY", "DEVICE_LOST", "INTERNAL"),
        most,
        Share.parse(share),
        rules,
    )
    return sweep(plan, runner, 2, lambda count: lambda rule: None)


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(HEAD + text, encoding="utf-8")
        return path

    return write


# `make stress` lets each call fail, in four shares.
@pytest.mark.parametrize("share", ["1/4", "2/4", "3/4", "4/4"] if _IS_LONG else ["1/1"])
@pytest.mark.parametrize("schedule", ["inline", "pct:1"])
def test_a_training_step_survives(runner: Runner, schedule: str, share: str) -> None:
    sweep = run(runner, STEP, schedule=schedule, most=1_000_000 if _IS_LONG else 20, share=share)
    assert not sweep.problems, fault_report.as_text(sweep)
    assert {"mem_alloc", "copy_async", "event_record", "host_callback", "stream_wait_event"} <= {*sweep.calls}
    assert sweep.outcomes["error"] > 0 and sweep.outcomes["recovered"] > 0
    assert sweep.runs >= 20 and (sweep.left_out == 0) is _IS_LONG


@pytest.mark.parametrize("share", ["1/4", "2/4", "3/4", "4/4"] if _IS_LONG else ["1/1"])
@pytest.mark.parametrize("schedule", ["inline", "pct:1"])
def test_two_ranks_survive(runner: Runner, schedule: str, share: str) -> None:
    """The first rank ends in an error or recovers, and the second one does not wait for it forever."""
    sweep = run(runner, TWO_RANKS, schedule=schedule, most=1_000_000 if _IS_LONG else 4, share=share)
    assert not sweep.problems, fault_report.as_text(sweep)
    assert {"mem_alloc", "copy_async", "event_record", "host_callback", "stream_wait_event"} <= {*sweep.calls}
    assert sweep.outcomes["error"] > 0 and (sweep.left_out == 0) is _IS_LONG


def test_an_error_that_was_raised_keeps_nothing_alive(runner: Runner) -> None:
    """A collective keeps its error, whose traceback has the frames that own the collective and the network."""
    sweep = run(runner, STEP, "event_synchronize:1:INTERNAL")
    assert not sweep.problems and sweep.errors == {"torch_outboard._errors.DriverError": 1}, sweep


def test_wrong_ends_are_found(runner: Runner, script) -> None:
    """Each of these hides a failure, and what it does instead is reported."""
    once = "mem_alloc:1:INTERNAL"  # out of memory, it would be tried again
    for handling, message in {
        "x = torch.zeros(4)": "observation 1 is torch.float32 (4,) [0.0",
        "sys.exit(0)": "0 results are observed, but 1 without",
        "os.kill(os.getpid(), 11)": "was ended by the signal SIGSEGV",
        "raise ValueError('of its own')": "ends with ValueError, which is not a device error: of its own",
        "raise ValueError('of its own') from error": "",
        "os._exit(0)": "its output differs",
        "x = torch.ones(4); module.kept = torch.ones(9, device=device)": "bytes stay in use",
        "x = torch.ones(4); print('again')": "",
    }.items():
        text = f"""
try:
    x = torch.ones(4, device=device)
except torch_outboard.DriverError as error:
    {handling}
observe(x.cpu())
print("done")
"""
        sweep = run(runner, script(text), once)
        assert [problem.rule for problem in sweep.problems] == ([once] if message else []), (handling, sweep)
        assert message in "".join(problem.what for problem in sweep.problems), handling
        assert fault_report.status_of(sweep) == bool(message)


def test_a_program_that_does_not_end(runner: Runner, script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "limit", 5)
    text = "try: x = torch.ones(4, device=device)\nexcept torch_outboard.DriverError:\n    while True: pass"
    sweep = run(runner, script(text), "mem_alloc:1:INTERNAL", "mem_alloc:9:INTERNAL")
    assert [problem.what for problem in sweep.problems] == ["the program had not ended after 5 s"]
    assert "Fatal Python error" in sweep.problems[0].last_words or "program.py" in sweep.problems[0].last_words
    assert sweep.outcomes == {"problem": 1, "not reached": 1}


def test_attaching_may_fail(runner: Runner, script) -> None:
    sweep = run(runner, script("observe(torch.ones(2, device=device))"), "device_count:1:INTERNAL")
    assert sweep.outcomes == {"error": 1}, fault_report.as_text(sweep)


def test_a_program_that_fails_by_itself_is_reported(runner: Runner, script) -> None:
    with pytest.raises(ProgramFailed, match="(?s)exited with status 1 without a failing call.*of its own"):
        run(runner, script("raise ValueError('of its own')"))
    path = script("")
    path.write_text("import torch_outboard; torch_outboard.attach('sim', schedule='lazy:3')", encoding="utf-8")
    with pytest.raises(SearchRefused, match="schedule=lazy:3"):
        run(runner, path)


def test_rules_are_bounded_and_spread() -> None:
    groups = rules_of({"mem_alloc": 100, "copy_async": 3}, ("INTERNAL",))
    assert [len(group) for group in groups] == [100, 3, 3] and groups[2][0] == "queued:copy_async:1:DATA_LOSS"
    few = select_rules(groups, 16)
    assert len(few) == len({*few}) == 16 and few[:3] == [groups[1][0], groups[2][0], groups[0][0]]
    assert {*groups[1], *groups[2], groups[0][0], groups[0][-1]} <= {*few}
    assert sorted(select_rules(groups, 1000)) == sorted(sum(groups, []))
    assert len(select_rules(groups, 2)) == 2 and select_rules([[]], 5) == []


def test_counts_survive_the_process(run_python, tmp_path: Path) -> None:
    path = tmp_path / "counts"
    code = """
import os, sys, torch, torch_outboard
torch_outboard.attach("sim", schedule="inline", fault_counts=sys.argv[1], fault="mem_alloc:2:INTERNAL")
x = torch.ones(2, device="sim")
if os.fork() == 0:
    os._exit(0)
os.kill(os.getpid(), 9)
"""
    run_python(code, str(path), status=-9)
    calls, failures = read_counts(path)
    assert calls["mem_alloc"] == 1 and calls["device_open"] == 1 and failures == 0 and "mem_free" not in calls
    answer = run_python(
        "import sys, torch_outboard; torch_outboard.attach('sim', fault_counts=sys.argv[1])",
        str(tmp_path / "nowhere" / "counts"),
        status=1,
    )
    assert "fault_counts" in answer.stderr and "No such file or directory" in answer.stderr


def test_the_command(tmp_path: Path, script) -> None:
    path, report = script("observe(torch.ones(2, device=device) + 1)"), tmp_path / "report.json"
    words = ["run", "--fail-each", "--runs=2", "--jobs=1", f"--json={report}", str(path)]
    answer = CliRunner().invoke(main, words)
    assert answer.exit_code == 0 and "0 end in another way" in answer.output, answer.output
    data = json.loads(report.read_text())
    assert data["found"] is False and data["runs"] == 2 and data["left_out"] > 0 and data["calls"]["mem_alloc"] > 0
    # A script that hides a failure, which was written for CUDA.
    path.write_text("import torch\ntry: torch.ones(2).cuda()\nexcept RuntimeError: 1 / 0\n", encoding="utf-8")
    words = [
        "run",
        "--as-cuda",
        "--fail-each",
        "-j1",
        "--rule=mem_alloc:1:INTERNAL",
        f"--json={report}",
        str(path),
        "3",
    ]
    answer = CliRunner().invoke(main, words)
    assert answer.exit_code == 1, answer.output
    [problem] = json.loads(report.read_text())["problems"]
    assert "ZeroDivisionError" in problem["what"] and problem["rule"] == "mem_alloc:1:INTERNAL"
    assert problem["command"].endswith(f"--fail-each --rule=mem_alloc:1:INTERNAL --as-cuda {path} 3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs=3"], "--runs needs --fail-each"),
        (["--rule=mem_alloc:1:INTERNAL"], "--rule needs --fail-each"),
        (["--fail-each", "--driver=null"], "has no option 'fault'"),
        (["--fail-each", "--driver=nobody"], "no driver is called 'nobody'"),
        (["--fail-each", "--share=4/3"], "is not a share"),
        (["--fail-each", "--status=FINE"], "unknown status 'FINE'"),
        (["--fail-each", "--option", "fault=mem_alloc:1:INTERNAL"], "sets 'fault' itself"),
        (["--fail-each", "--option", "nope=1"], "has no option 'nope'"),
        (["--fail-each", "--json=/no/such/folder/x"], "there is no folder"),
        (["--fail-each", "--runs=0"], "--runs"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    answer = CliRunner().invoke(main, ["run", *arguments, __file__])
    assert answer.exit_code == 2 and message in answer.output, answer.output
