# SPDX-License-Identifier: BSD-3-Clause
"""`outboard race` and `pytest --outboard-race`: what they compare, their exit statuses, and programs that misbehave."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from torch_outboard.race import page, report
from torch_outboard.race.runs import Program, Runner
from torch_outboard.race.search import Finding, Plan, ProgramFailed, SearchRefused, search

from .browser import WIDTHS, look

pytestmark = pytest.mark.database

RACES = Path(__file__).parent.parent / "races"
OPTIONS = frozenset({"schedule", "steps", "depth", "changes", "poison"})
HEAD = """
import os, sys, torch, torch_outboard
from torch_outboard.testing import observe
module = torch.get_device_module(device := torch.accelerator.current_accelerator())
side = module.Stream()
with module.stream(side):
    late = torch.full((8,), 3.0).pin_memory().to(device, non_blocking=True)
"""
WAITS = "module.current_stream().wait_stream(side); late.record_stream(module.current_stream())\n"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    started = Runner("sim", "sim", jobs=2, limit=20)
    yield started
    started.close()


def find(runner: Runner, program: Program | Path, seeds: int = 4) -> Finding:
    if isinstance(program, Path):
        program = Program("script", str(program))
    return search(Plan(program, "sim", "sim", OPTIONS, tuple(range(seeds))), runner, 2, lambda name: None)


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str, head: str = HEAD) -> Path:
        path = tmp_path / "program.py"
        path.write_text(head + text, encoding="utf-8")
        return path

    return write


def test_the_report_names_the_race_and_the_command(runner: Runner) -> None:
    finding = find(runner, RACES / "event_too_early.py", 20)
    text = report.as_text(finding)
    assert "y = x * 2  # one" in text and "observe(y + 1)  # other" in text, "both stacks"
    assert "wait_stream(other)` before event_too_early.py:" in text and report.status_of(finding) == 1
    data = json.loads(json.dumps(report.as_json(finding)))
    assert data["found"] is True and data["by"] == ["schedule", "sanitizer"]
    assert re.fullmatch(r"pct:\d+", data["schedule"]) and data["runs"] == finding.runs
    assert [Path(file).name for file, _ in data["lines"]] == ["event_too_early.py"] * 2
    assert f"--schedule={data['schedule']} --changes={data['options']['changes']}" in data["command"]
    # The command repeats it: the same seed, with the changes that matter.
    plan = Plan(
        finding.plan.program, "sim", "sim", OPTIONS, (int(data["schedule"][4:]),), None, int(data["options"]["changes"])
    )
    again = search(plan, runner, 2, lambda name: None)
    assert again.difference == finding.difference and again.runs == 3


def test_differences_are_found_in_what_a_program_prints_and_in_its_end(runner: Runner, script) -> None:
    for ending in ("print(late.sum().item())", "sys.exit(int(late[0].item() != 3))", "assert late[0].item() == 3"):
        finding = find(runner, script(ending), 20)
        assert finding.shown is not None, ending
        assert find(runner, script(WAITS + ending)).by == [], ending


STALE = """
old = torch.full((64,), 5.0, device=device)  # stale
module.synchronize()
del old
new = torch.empty(64, device=device)
side.wait_stream(module.current_stream())
with module.stream(side):
    new.fill_(1)
observe(new)
module.synchronize()
"""


def test_the_report_names_the_freed_memory_that_was_read(runner: Runner, script) -> None:
    path = script(WAITS + STALE)
    line = next(at for at, text in enumerate(path.read_text().splitlines(), 1) if text.endswith("# stale"))
    finding = find(runner, path, 20)
    assert "with memory that was freed as number" in finding.difference
    assert f"last used by aten::fill_ at program.py:{line}" in finding.stale and finding.stale in report.as_text(
        finding
    )
    assert report.as_json(finding)["stale"] == finding.stale


def test_processes_that_a_program_starts_are_watched(runner: Runner, tmp_path: Path) -> None:
    child = tmp_path / "other.py"
    child.write_text(HEAD + "y = late + 1  # nothing waits\nmodule.synchronize()\n", encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text(HEAD + WAITS + f"import subprocess; subprocess.run([sys.executable, {str(child)!r}])")
    finding = find(runner, program, 1)
    assert finding.by == ["sanitizer"] and finding.races == []
    [text] = finding.races_elsewhere
    assert "before other.py" in text and text in report.as_text(finding)
    assert report.as_json(finding)["races_elsewhere"] == [text] and report.status_of(finding) == 1


def test_random_numbers_and_times_are_no_races(runner: Runner, script) -> None:
    finding = find(
        runner, script(WAITS + "import time; print(time.time()); print(late[0].item()); print(torch.rand(1))")
    )
    assert finding.by == []
    assert len(finding.notes) == 1 and "1 lines of the output differ" in finding.notes[0]
    noisy = WAITS + "observe(late + int.from_bytes(os.urandom(2), 'little'))"
    finding = find(runner, script(noisy))
    assert finding.by == [] and "1 observed results differ" in finding.notes[0]


def test_a_program_with_one_stream_has_nothing_to_find(runner: Runner, script) -> None:
    finding = find(
        runner, script("import torch; x = torch.ones(4, device='sim'); print((x + 1).sum().item())", head="")
    )
    assert finding.notes == ["nothing to find: one stream"] and finding.runs == 2 and report.status_of(finding) == 0


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("raise ValueError('of its own')", "exited with status 1 on the inline schedule.*ValueError: of its own"),
        ("sys.exit(7)", "exited with status 7"),
        ("input()", "pass a file with --stdin"),
        ("os.kill(os.getpid(), 11)", "signal SIGSEGV"),
        ("os._exit(3)", "exited with status 3"),
    ],
)
def test_a_program_that_fails_by_itself_is_reported(runner: Runner, script, ending: str, message: str) -> None:
    with pytest.raises(ProgramFailed, match=f"(?s){message}"):
        find(runner, script(WAITS + ending))


def test_a_program_that_never_ends(runner: Runner, script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "limit", 5)
    with pytest.raises(ProgramFailed, match="had not ended after .* Raise --time-limit"):
        find(runner, script(WAITS + "while True: pass"))
    # Under a schedule it is a difference.
    finding = find(runner, script("wrong = late[0].item() != 3\nwhile wrong: pass"), 20)
    assert "had not ended" in finding.difference and finding.by[0] == "schedule"


def test_children_of_a_program_end_with_it(runner: Runner, script, tmp_path: Path) -> None:
    mark = tmp_path / "children"
    text = f"""
for _ in range(2):
    child = os.fork()
    if child == 0:
        if _ == 0: os._exit(0)
        import time; time.sleep(600)
    with open({str(mark)!r}, "a") as file: print(child, file=file)
"""
    assert find(runner, script(WAITS + text), 1).by == []
    for line in mark.read_text().split():
        with pytest.raises(ProcessLookupError):
            for _ in range(1000000):
                os.kill(int(line), 0)
                if Path(f"/proc/{line}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    raise ProcessLookupError  # its parent is gone, and nobody has asked for its status yet


def test_a_program_that_ends_its_process_or_forks_is_compared(runner: Runner, script) -> None:
    finding = find(runner, script("print(late[0].item(), flush=True); os._exit(0)"), 20)
    assert finding.by == ["schedule", "sanitizer"] and "line 1 of the output" in finding.difference
    assert "only the sanitizer's printed reports" in finding.notes[0]


def test_each_run_has_its_folder_and_its_input(
    runner: Runner, script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    input_file = tmp_path / "given"
    input_file.write_text("5\n")
    monkeypatch.setattr(runner, "owns_folder", True)
    monkeypatch.setattr(runner, "stdin", str(input_file))
    text = WAITS + "assert not os.listdir('.'); open('mine', 'x').write(input()); print(open('mine').read())"
    finding = find(runner, script(text))
    assert finding.by == [] and finding.expected.output == "5\n"


def test_a_program_that_chooses_its_schedule_is_refused(runner: Runner, script) -> None:
    head = "import torch, torch_outboard; torch_outboard.attach('sim', schedule='lazy:3')\n"
    with pytest.raises(SearchRefused, match="schedule=lazy:3"):
        find(runner, script("print(torch.ones(2, device='sim').sum())", head=head))


def test_a_module_and_its_arguments(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "__main__.py").write_text("import sys, torch; print(sys.argv[1:], __name__)")
    monkeypatch.chdir(tmp_path)
    finding = find(runner, Program("module", "packed", ("--x", "1")))
    assert finding.expected.output == "['--x', '1'] __main__\n"


TESTS = (
    HEAD
    + """
def test_waits():
    module.current_stream().wait_stream(side)
    assert observe(late)[0].item() == 3

def test_fails():
    assert False

def test_lacks_a_wait():
    other = module.Stream()
    with module.stream(other):
        y = torch.ones(8, device=device)
    assert (y + 1).sum().item() == 16
"""
)


def test_pytest_compares_tests(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "test_program.py"
    path.write_text(TESTS, encoding="utf-8")
    finding = find(runner, Program("pytest", "pytest", (str(path), "-q", "-p", "no:randomly")), 20)
    assert "test_lacks_a_wait has failed, but passed on the inline schedule" in finding.difference
    assert report.command_of(finding).startswith("pytest --outboard-race --outboard-race-driver=sim")
    only = find(runner, Program("pytest", "pytest", (str(path), "-q", "-k", "waits or fails")))
    assert only.by == []


class _Checked(HTMLParser):
    """Collects what a page would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "line", "rect", "path"):
            self.open.append(tag)
        self.outside += [name for name, _ in attributes if name in ("src", "href") or name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()


def test_the_page_is_whole_and_escaped(runner: Runner, script) -> None:
    path = script("print('<script>alert(1)</script>', late.sum().item())")
    finding = find(runner, path, 20)
    text = page.page(finding)
    checked = _Checked()
    checked.feed(text)
    assert checked.open == [] and checked.outside == []
    assert "script" not in checked.tags and "<script>" not in text and "&lt;script&gt;" in text
    assert checked.tags.count("svg") == 1 and 'class="first"' in text and 'class="second"' in text
    assert "no wait" in text and "http" not in text.replace("http-equiv", "")
    file = path.with_name("page.html")
    file.write_text(text, encoding="utf-8")
    for width in WIDTHS:
        titles = look(file, width, "return [...document.querySelectorAll('.first, .second')].map(x => x.textContent)")
        assert len(titles) == 2 and all("program.py:" in title for title in titles)


def run_command(*arguments: str, module: str = "torch_outboard") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOARD_", "PYTEST_"))}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run([sys.executable, "-m", module, *arguments], env=environment, text=True, capture_output=True)


def test_the_command(tmp_path: Path) -> None:
    json_file, html_file = tmp_path / "race.json", tmp_path / "race.html"
    answer = run_command("race", f"--json={json_file}", f"--html={html_file}", str(RACES / "kv_swap.py"))
    assert answer.returncode == 1, answer.stderr
    assert "Missing: `stream.wait_stream(other)` before kv_swap.py" in answer.stdout
    data = json.loads(json_file.read_text())
    assert data["found"] and data["by"] == ["schedule", "sanitizer"] and html_file.read_text().startswith("<!DOCTYPE")
    repaired = run_command("race", "--seeds=2", str(RACES / "kv_swap.py"), "--repaired")
    assert repaired.returncode == 0 and "No race: 4 runs" in repaired.stdout, repaired.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "there is no file 'nowhere.py'"),
        (["--driver=nobody", __file__], "no driver is called 'nobody'"),
        (["--driver=null", __file__], "has no option 'schedule'"),
        (["--schedule=lazy:3", __file__], "pct:SEED"),
        (["--changes=3", __file__], "--changes needs --schedule"),
        (["--json=/no/such/folder/x", __file__], "there is no folder"),
        (["--seeds=0", __file__], "--seeds"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    from click.testing import CliRunner

    from torch_outboard.cli import main

    answer = CliRunner().invoke(main, ["race", *arguments])
    assert answer.exit_code == 2 and message in answer.output, answer.output


def test_pytest_takes_the_option(tmp_path: Path) -> None:
    path = tmp_path / "test_program.py"
    path.write_text(TESTS.replace("def test_fails", "def fails"), encoding="utf-8")
    arguments = ("--outboard-race", "--outboard-race-seeds", "20", "-p", "no:cacheprovider", str(path))
    answer = run_command("--disable-plugin-autoload", "-p", "torch_outboard_pytest", *arguments, module="pytest")
    assert answer.returncode == 1 and "test_lacks_a_wait" in answer.stdout, answer.stdout + answer.stderr
    wrong = ("--outboard-race", "--outboard-race-driver=nobody")
    refused = run_command("--disable-plugin-autoload", "-p", "torch_outboard_pytest", *wrong, module="pytest")
    assert refused.returncode == 2 and "no driver is called 'nobody'" in refused.stderr
