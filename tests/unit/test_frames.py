# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in a language that is not C in its frame: a dialect's methods write all of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from torch_outboard.codegen.dialects.frame import LocalArray, Parameter
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.testing.plugin import RunPython

from .frames import FRAMES

# Plans of all mappings of a device with groups, of tiles, and of lists of tensors.
_BUILD = """
import sys
from pathlib import Path
import torch, torch_outboard
from torch_outboard._discovery import find_driver
from torch_outboard.kernels import builder
from tests.unit.frames import FramesGenerator

class Driver(find_driver("sim")):
    kernel_generator = FramesGenerator

torch_outboard.attach(Driver)
folder = Path(sys.argv[1])

def r(*size, dtype=torch.float32):
    return torch.ones(size, dtype=dtype, device="sim")

def build(name, *arguments, chunks=False):
    arguments = list(arguments)
    answer = builder.build_chunks(name, arguments, 0) if chunks else builder.build(
        name, arguments, builder.numbers(name), False, 0)
    assert not answer.refusal and answer.kernels, (name, answer.refusal)
    for code in {kernel.code.decode() for kernel in answer.kernels}:
        (folder / f"{len(list(folder.iterdir()))}.cpp").write_text(code)

x, half = r(5, 14), r(5, 14, dtype=torch.float16)
build("aten::sub.Tensor", x, r(14), 1)
build("aten::add.Tensor", half, half, 1)
build("aten::clamp", x, -1.5, 2.0)
build("aten::fill.Scalar", r(3, dtype=torch.int64), 2**40)
for shape in ((5, 14), (70, 5000), (6, 90)):
    build("aten::_softmax", r(*shape), 1, False)
    build("aten::sum.dim_IntList", r(*shape), [0], False, None)
    build("aten::argmax", r(*shape), 1, False)
build("aten::cumsum", x, 1, None)
for dtype in (torch.float32, torch.float16, torch.float64, torch.int32, torch.int64):
    build("aten::mm", r(6, 10, dtype=dtype), r(10, 14, dtype=dtype))
heads = [r(2, 3, 9, 16, dtype=torch.float16) for _ in range(3)]
build("aten::_scaled_dot_product_fused_attention_overrideable", *heads, None, 0.0, True, False, None)
numbers = torch.zeros((), dtype=torch.int64, device="sim")
wanted = [True, True, True, False]
build("aten::_scaled_dot_product_fused_attention_overrideable_backward", heads[0], *heads, None, wanted,
      heads[0], r(2, 3, 9), numbers, numbers, 9, 9, 0.0, True, numbers, numbers, None)
build("aten::convolution", r(2, 6, 9, 14), r(8, 6, 3, 3), r(8), [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
build("aten::_foreach_add.List", [r(5, 9), r(7)], [r(5, 9), r(7)], 1, chunks=True)
build("aten::_foreach_norm.Scalar", [r(5, 9), r(7)], 2, None, chunks=True)
"""

_OF_C = {
    "a qualifier": r"OB_GLOBAL|OB_LOCAL|OB_RESTRICT",
    "an enum": r"\benum\b",
    "a pragma": r"#pragma",
    "a suffix": r"\b\d+(\.\d+)?(e[+-]?\d+)?(f|L|UL)\b",
    "an address in a group's memory": r"\(\w*tile \+",
}


def test_all_of_the_frame_is_the_dialects(run_python: RunPython, tmp_path: Path) -> None:
    environment = {"OUTBOARD_KERNEL_CACHE_DIR": "", "OUTBOARD_KERNEL_PACKS": ""}
    run_python(_BUILD.replace("sys.argv[1]", repr(str(tmp_path))), env=environment)
    programs = sorted(tmp_path.glob("*.cpp"))
    assert len(programs) > 20
    kernels = [path.read_text().rpartition("_given {")[2] for path in programs]
    leftovers = {(kind, match[0]) for text in kernels for kind, c in _OF_C.items() if (match := re.search(c, text))}
    assert not leftovers
    # The header takes longer to compile than all kernels.
    parts = [path.read_text().partition(FRAMES.header) for path in programs]
    spaces = (f"namespace program{number} {{\n{after}\n}}\n" for number, (_, _, after) in enumerate(parts))
    (tmp_path / "all.cc").write_text("".join([*parts[0][:2], *spaces]))
    command = ["c++", "-std=c++17", "-fsyntax-only", "-w", "all.cc"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.parametrize(
    ("parameter", "in_c", "elsewhere"),
    [
        (Parameter("n", "ob_i64"), "const ob_i64 n", "ob_i64 n"),
        (Parameter("x", "float", True), "OB_GLOBAL const float* x", "ob_span<const float> x"),
        (Parameter("x", "float", True, True, True), "OB_GLOBAL float* OB_RESTRICT x", "ob_span<float> x"),
    ],
)
def test_a_parameter(parameter: Parameter, in_c: str, elsewhere: str) -> None:
    assert OPENCL_C.declared(parameter) == in_c
    assert FRAMES.declared(parameter) == elsewhere


def test_memory_of_a_group_stands_in_the_kernel_in_c_and_before_it_elsewhere() -> None:
    arrays = [LocalArray("float", "tile", "16 * 68", is_aligned=True)]
    in_c = OPENCL_C.frame("f", [], "  body;\n", arrays)
    assert in_c == "__kernel void f() {\n  OB_LOCAL float tile[16 * 68] OB_ALIGNED(16);\n  body;\n}\n"
    assert FRAMES.frame("f", [], "  body;\n", arrays).startswith("static ob_shared<float, 16 * 68> f_tile;\n")


def test_literals_have_the_dialects_suffixes() -> None:
    assert FRAMES.literal(3, torch.float32) == "(3.0_f)" and FRAMES.literal(3, torch.float64) == "(3.0)"
    assert FRAMES.literal(2**40, torch.int64) == "((ob_i64)1099511627776_i)"
    assert FRAMES.literal(-(2**63), torch.int64) == "((ob_i64)(-9223372036854775807_i - 1))"
