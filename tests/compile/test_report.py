# SPDX-License-Identifier: BSD-3-Clause
"""The report of compilations, and `outboard compile-report`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from torch_outboard.cli import main
from torch_outboard.compile import CompileReport, report


def _graphs(result: CompileReport) -> list[tuple[str, str]]:
    return [(graph.kind, graph.state) for graph in result.graphs]


def test_a_region_tells_its_kernels_operators_and_times(device: torch.device) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ y) * 2.5

    x = torch.randn(8, 8, device=device)
    with report() as result:
        assert result.regions == []
        torch.compile(function, fullgraph=True)(x, x)
    (region,) = result.regions
    assert region.compile_id == "0/0" and region.function == "function"
    assert region.file == __file__ and region.line == function.__code__.co_firstlineno
    assert region.operators == 3 and not region.breaks and not region.recompile_reasons and not region.error
    (graph,) = region.graphs
    assert (graph.kind, graph.note) == ("inference", "")
    (kernel,) = graph.kernels
    assert kernel.language in ("C++", "OpenCL C", "triton_kernel") and kernel.lines > 5 and kernel.calls == 1
    assert {"aten.gelu", "aten.mul"} <= set(kernel.operators)
    (extern,) = graph.externs
    assert extern.name.startswith("aten::mm") and extern.calls == 1
    assert extern.provider in ("native", "host", "fallback")
    assert all(seconds > 0 for seconds in region.seconds.values()), region.seconds
    text = str(result)
    assert kernel.name in text and "aten::mm" in text and f"{__file__}:" in text


def test_what_the_cache_had_is_distinguished_and_listed_all_the_same(device: torch.device) -> None:
    x = torch.randn(6, device=device)
    compiled = torch.compile(lambda x: (x.sin() + 0.125).sum(), fullgraph=True)
    with report() as first:
        compiled(x)
    torch._dynamo.reset()
    with report() as second:
        compiled(x)
    assert _graphs(first) == [("inference", "compiled")]
    assert _graphs(second) == [("inference", "from the cache")]
    assert first.graphs[0].kernels == second.graphs[0].kernels
    assert "(1 from the cache)" in second.summary()


def test_training_has_a_forward_and_a_backward_graph(device: torch.device) -> None:
    model = torch.nn.Linear(4, 4, device=device)
    compiled = torch.compile(model, fullgraph=True)
    for expected in ("compiled", "from the cache"):
        torch._dynamo.reset()
        with report() as result:
            compiled(torch.randn(3, 4, device=device)).relu().sum().backward()
        assert _graphs(result) == [("forward", expected), ("backward", expected)]


def test_graph_breaks_have_reasons_and_places(device: torch.device) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    with report() as result:
        torch.compile(broken)(torch.ones(3, device=device))
    first, second = result.regions
    assert first.function == "broken" and second.function.startswith("torch_dynamo_resume_in_broken")
    (graph_break,) = first.breaks
    assert "graph_break" in graph_break.reason
    assert (graph_break.file, graph_break.line) == (__file__, broken.__code__.co_firstlineno + 2)
    assert not second.breaks
    assert "1 graph break," in result.summary()


def test_a_recompilation_tells_which_guard_failed(device: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    with report() as result:
        compiled = torch.compile(function)
        for size in (4, 5, 6):
            compiled(torch.ones(size, device=device))
    assert [region.compile_id for region in result.regions] == ["0/0", "0/1"]
    assert result.regions[0].recompile_reasons == []
    assert "size" in result.regions[1].recompile_reasons[0]


def test_a_failed_compilation_is_reported(device: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3, device=device)

    with report() as result, pytest.raises(Exception, match="size"):
        torch.compile(function)(torch.ones(2, device=device))
    assert "size" in result.regions[0].error


def test_reports_nest(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    with report() as outer:
        torch.compile(lambda x: x - 1)(x)
        with report() as inner:
            torch.compile(lambda x: x - 2)(x)
    assert (len(outer.regions), len(inner.regions)) == (2, 1)


SCRIPT = """
import sys, torch, torch_outboard
device = torch_outboard.attach(sys.argv[1]).__name__.rpartition(".")[2]
assert __name__ == "__main__" and sys.path[0] == {folder!r}, sys.path

@torch.compile
def first(x):
    return (x @ x).cos()

@torch.compile
def second(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return y + 1

x = torch.ones(4, 4, device=device)
first(x)
second(x)
print("arguments", sys.argv[1:])
"""


def _run(folder: Path, driver_target: str, *options: str, end: str = "") -> Result:
    script = folder / "script.py"
    script.write_text(SCRIPT.format(folder=str(folder)) + end)
    before = list(sys.path), list(sys.argv)
    answer = CliRunner().invoke(main, ["compile-report", *options, str(script), driver_target, "--flag"])
    assert (sys.path, sys.argv) == before
    return answer


def _regions(answer: Result) -> dict[str, Any]:
    report = json.loads(answer.stdout[answer.stdout.index("{") :])
    return {region["function"]: region for region in report["regions"]}


@pytest.mark.usefixtures("device")
def test_the_command_runs_a_script_with_its_arguments(tmp_path: Path, driver_target: str) -> None:
    answer = _run(tmp_path, driver_target, "--json")
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.startswith(f"arguments ['{driver_target}', '--flag']\n")
    regions = _regions(answer)
    assert [name.startswith("torch_dynamo_resume_in_second") for name in regions] == [False, False, True]
    assert regions["first"]["graphs"][0]["externs"][0]["name"].startswith("aten::mm")
    assert regions["second"]["breaks"][0]["file"] == str(tmp_path / "script.py")


@pytest.mark.usefixtures("device")
def test_a_script_that_raises_has_its_traceback_its_status_and_a_report(tmp_path: Path, driver_target: str) -> None:
    answer = _run(tmp_path, driver_target, "--json", end="\ndef f():\n    raise KeyError('gone')\nf()\n")
    assert answer.exit_code == 1
    lines = answer.stderr.splitlines()
    assert lines[-1] == "KeyError: 'gone'"
    start = lines.index("Traceback (most recent call last):")
    assert lines[start + 1].startswith(f'  File "{tmp_path / "script.py"}", line ')
    assert set(_regions(answer)) > {"first", "second"}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("end", "status", "message"), [("3", 3, ""), ("", 0, ""), ("'no'", 1, "no\n")])
def test_the_script_s_exit_status_is_kept(
    tmp_path: Path, driver_target: str, end: str, status: int, message: str
) -> None:
    answer = _run(tmp_path, driver_target, end=f"\nsys.exit({end})\n")
    assert (answer.exit_code, answer.stderr) == (status, message)
    assert "first" in answer.stdout and "Compiled: 3 regions" in answer.stdout


@pytest.mark.usefixtures("device")
def test_the_page_is_written(tmp_path: Path, driver_target: str) -> None:
    target = tmp_path / "report.html"
    answer = _run(tmp_path, driver_target, "--html", str(target))
    assert answer.exit_code == 0 and f"wrote {target}" in answer.stderr
    text = target.read_text()
    assert "script.py" in text and "torch_dynamo_resume_in_second" in text


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    answer = CliRunner().invoke(main, ["compile-report", str(tmp_path / "none.py")])
    assert answer.exit_code == 2 and "none.py" in answer.output


@pytest.mark.usefixtures("device")
def test_a_script_that_cannot_be_read_shows_where(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text("x = (\n")
    answer = CliRunner().invoke(main, ["compile-report", str(script)])
    assert answer.exit_code == 1
    assert "SyntaxError" in answer.stderr and "Traceback" not in answer.stderr
