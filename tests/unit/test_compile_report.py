# SPDX-License-Identifier: BSD-3-Clause
"""The sources of the compile report: generated code, graph breaks, times; and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_outboard.cli.compile_report import page
from torch_outboard.compile.reporting.build import Clock, read_graph
from torch_outboard.compile.reporting.code import Extern, Kernel, read_code
from torch_outboard.compile.reporting.data import Graph, GraphBreak, Region
from torch_outboard.compile.reporting.report import CompileReport
from torch_outboard.compile.reporting.trace import Event, read_break

from .browser import WIDTHS, look

CODE = """
import torch
aten = torch.ops.aten
cpp_fused_add_0 = cpp_kernel(async_compile, "cpp_fused_add_0", ["float*"], r'''
extern "C" void kernel(float* out_ptr0)
{

}
''')
unused = async_compile.triton("unused", '''
def unused(): pass
''', device_str="cuda")

class Runner:
    def call(self, args):
        buf0 = empty_strided_outboard((2,), (1,), torch.float32, 0)
        # Topologically Sorted Source Nodes: [x, y], Original ATen: [aten.add, aten.gelu]
        cpp_fused_add_0(buf0)
        # Topologically Sorted Source Nodes: [z], Original ATen: [aten.linear]
        extern_kernels.mm(buf0, buf0, out=buf0)
        cpp_fused_add_0(buf0)
        # Topologically Sorted Source Nodes: [s], Original ATen: [aten.sort]
        buf1 = aten.sort.stable(buf0, stable=True)
        buf2 = torch.ops.mylib.twice.default(buf0)
        extern_kernels.mm(buf0, buf0, out=buf0)

def benchmark_compiled_module():
    return torch.ops.aten.randn.default([2])
"""


def test_kernels_and_operators_are_read_from_the_code() -> None:
    kernels, externs = read_code(CODE)
    assert kernels == [
        Kernel("cpp_fused_add_0", "C++", 3, ["aten.add", "aten.gelu"], 2),
        Kernel("unused", "Triton", 1),
    ]
    assert externs == [
        Extern("aten::mm", 2),
        Extern("aten::sort.stable", 1),
        Extern("mylib::twice", 1),
    ]


def test_code_in_cpp_is_said_not_to_be_read() -> None:
    assert "C++" in read_graph("inference", "cpp_wrapper_src = (\n'void f() {}')").note
    assert "cannot be read" in read_graph("inference", "int main() {}").note
    assert read_graph("inference", CODE).note == ""


def test_code_that_is_no_python_is_said_to_be_unreadable() -> None:
    with pytest.raises(SyntaxError):
        read_code("int main() {}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Graph break in user code at /a/b.py:12\nGraph Break Reason: Call to print\n  Hint: don't\n\n"
            'User code traceback:\n  File "/a/b.py", line 3, in f\n\nNoneType: None\n',
            ("Call to print\n  Hint: don't", "/a/b.py", 12),
        ),
        (
            "Graph break: torch.compile cannot properly resume, which results in a skip.\nIt falls back.\n"
            '  File "/a/b.py", line 3, in f\n    x\n  File "/a/c.py", line 7, in g\n    y\n\nTraceback (most recent\n'
            '  File "/torch/x.py", line 1, in z\n',
            (
                "Graph break: torch.compile cannot properly resume, which results in a skip. It falls back.",
                "/a/c.py",
                7,
            ),
        ),
        ("something else", ("something else", "", None)),
    ],
)
def test_breaks_are_read_with_their_places(text: str, expected: tuple[str, str, int | None]) -> None:
    assert read_break(text) == expected


def test_time_goes_to_the_innermost_phase() -> None:
    clock = Clock()
    events = [
        Event("entire_frame_compile", True, 10.0, "0/0"),
        Event("bytecode_tracing", True, 11.0, "0/0"),
        Event("something_new", True, 12.0, None),
        Event("something_new", False, 13.0, None),
        Event("backend_compile", True, 15.0, "0/0"),
        Event("lost", True, 16.0, "0/0"),
        Event("backend_compile", False, 18.0, "0/0"),
        Event("bytecode_tracing", False, 18.0, "0/0"),
        Event("entire_frame_compile", False, 20.0, "0/0"),
        Event("entire_frame_compile", True, 90.0, "1/0"),
        Event("entire_frame_compile", False, 91.0, "1/0"),
    ]
    seconds: dict[tuple[str, str], float] = {}
    for event in events:
        for compile_id, phase, spent in clock.add(event):
            seconds[compile_id, phase] = seconds.get((compile_id, phase), 0.0) + spent
    assert seconds == {("0/0", "dynamo"): 7.0, ("0/0", "aot"): 3.0, ("1/0", "dynamo"): 1.0}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_holds_its_data_and_no_markup_of_it(tmp_path: Path, width: int) -> None:
    report = CompileReport()
    evil = "</script><img src=x onerror=alert(1)>"
    report.regions = [
        Region(
            "0/0",
            function=evil,
            file=evil,
            line=1,
            recompile_reasons=[evil],
            breaks=[GraphBreak(evil, evil, 2)],
            graphs=[
                Graph(
                    "inference",
                    kernels=[Kernel(evil, evil, 1, [evil])],
                    externs=[Extern(evil, provider=evil)],
                    note=evil,
                )
            ],
            error=evil,
        )
    ]
    text = page(evil, report)
    assert text.count("</script>") == 1 and "<img" not in text
    assert "&lt;/script&gt;" in text and "\\u003c/script>" in text
    assert "http" not in text.replace("http-equiv", "")  # nothing is loaded

    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    shown, images = look(path, width, "return [document.body.innerText, document.querySelectorAll('img').length]")
    assert images == 0 and shown.count(evil) >= 8


def test_names_are_no_markup_of_the_terminal() -> None:
    report = CompileReport()
    name = "kernel[bold]x[/bold]"
    report.regions = [Region("0/0", function=name, graphs=[Graph("inference", kernels=[Kernel(name, "C++", 1)])])]
    assert str(report).count(name) == 2
