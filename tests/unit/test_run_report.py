# SPDX-License-Identifier: BSD-3-Clause
"""What `outboard run` ends with."""

from __future__ import annotations

import json

from torch_outboard.cli.run_report import _text

RUN = "import sys\nfrom torch_outboard.cli import main\nmain(sys.argv[1:], prog_name='outboard')"
PLANS = {"plans": 0, "loaded": 0, "saved": 0, "packed": 0, "seconds": 0.0}


def row(op, provider, calls):
    return {"op": op, "provider": provider, "calls": calls, "reasons": []}


def test_the_slowest_place_comes_first_and_the_busiest_operators_before_the_others():
    rows = [row("aten::sort", "fallback", 3), row("aten::mm", "host", 9), row("aten::add", "generated", 99)]
    report = {"seconds": 2.0, "operators": rows, "plans": {**PLANS, "plans": 4, "seconds": 1.5}, "compile_seconds": 0.5}
    assert _text(report).splitlines() == [
        "3 calls on copies on the CPU, which is slow: aten::sort 3.",
        "9 calls by the CPU's kernels in the device's memory: aten::mm 9.",
        "99 calls by generated kernels: aten::add 99.",
        "4 plans of kernels, 0 of them loaded, in 1.5 s.",
        "torch.compile took 0.5 s; `outboard compile-report` shows details.",
        "2.0 s in total.",
    ]


def test_long_lists_are_cut_and_names_are_printable():
    rows = [row(f"my::op{number}\x1b[31m", "fallback", 20 - number) for number in range(11)]
    [line, total] = _text({"seconds": 0.1, "operators": rows, "plans": PLANS, "compile_seconds": 0.0}).splitlines()
    assert line.endswith("and 3 more.") and "\x1b" not in line and "\\x1b" in line and total == "0.1 s in total."


def test_a_script_is_reported_in_text_json_and_a_page(run_python, tmp_path):
    script = tmp_path / "<b>train.py"
    script.write_text(
        "import sys, torch\nx = torch.ones(3, device='sim')\ntorch.sort(x + x)\nprint(sys.argv[1:])\nsys.exit(4)\n"
    )
    files = [f"--html={tmp_path / 'page.html'}", f"--json={tmp_path / 'report.json'}"]
    done = run_python(RUN, "run", "--driver=sim", *files, str(script), "--epochs=1", status=4)
    assert done.stdout == "['--epochs=1']\n" and " calls by the CPU's kernels" in done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert {row["op"] for row in report["operators"]} >= {"aten::add.Tensor", "aten::sort.stable"}
    assert report["seconds"] > 0 and report["compiled"]["regions"] == []
    page = (tmp_path / "page.html").read_text()
    assert "aten::add.Tensor" in page and "<b>train" not in page and "&lt;b&gt;train" in page


def test_a_report_that_cannot_be_written_is_refused_before_the_script_runs(run_python, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('ran')")
    done = run_python(RUN, "run", "--driver=sim", f"--json={tmp_path / 'none' / 'x.json'}", str(script), status=2)
    assert "there is no folder" in done.stderr and done.stdout == ""


def test_libraries_take_the_device_unless_they_are_left_alone(run_python, tmp_path):
    """A library of the name that safetensors has: `use()` replaces its function when the script imports it."""
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").write_text("")
    (tmp_path / "safetensors" / "torch.py").write_text("def load_file(path, device='cpu'):\n    return device\n")
    (tmp_path / "train.py").write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport safetensors.torch as st\n"
        "print(st.load_file.__globals__['__name__'])\n"
    )
    for options, module in (((), "torch_outboard.integrations.safetensors"), (("--no-use",), "safetensors.torch")):
        done = run_python(RUN, "run", "--driver=sim", *options, str(tmp_path / "train.py"))
        assert done.stdout == f"{module}\n"
