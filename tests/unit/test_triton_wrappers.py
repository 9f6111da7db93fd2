# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in Triton in the output of the other wrappers: graphs of torch.fx, and C++.

tests/stress covers known sizes, and packages.
"""

from __future__ import annotations

import random

import pytest

from unit.test_triton import needs_triton

CODE = """
import random, sys, pytest, torch, torch_outboard
from torch._inductor import config
from unit.triton_vendor import ToyDriver

config.compile_threads = 1
driver = ToyDriver()
torch_outboard.attach(driver)
from unit import triton_kernels as own

which, *shapes = sys.argv[1:]

def function(x, y, factor):
    z = torch.relu(x) * y + factor
    y.add_(1)
    return z.softmax(-1) + own.accumulated(z.reshape(-1)[7:]).sum()

def reference(x, y, factor):
    z = torch.relu(x) * y + factor
    part = z.reshape(-1)[7:]
    return z.softmax(-1) + (((part * 2.5 + 1).sin() + part) * 2).sum()

for dynamic in [shape == "dynamic" for shape in shapes]:
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, options={which: True})
    for n in (20, 33)[: 2 if dynamic else 1]:
        # The factor is a number on the CPU, by a tensor without dimensions.
        x, y, factor = torch.randn(n, 50), torch.randn(n, 50), torch.tensor(random.random())
        there = y.to("toychip")
        got = compiled(x.to("toychip"), there, factor)
        torch.testing.assert_close(got.cpu(), reference(x, y, factor), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(there.cpu(), y + 1)
assert {language for _, language, _ in driver.built} == {"own_triton_ir"}
# What was measured is known, and what is launched are the kernels alone.
count = len(driver.launched)
compiled(x.to("toychip"), there, factor)
names = [name for name, *_ in driver.launched[count:]]
assert len(names) == len(set(names)) and {"scale", "accumulate"} < set(names), names

driver.refuses = lambda grid, shared: True
with pytest.raises(ValueError, match="kernel_launch .*are more than there are"):
    compiled(x.to("toychip"), there, factor)
"""


PARTS = """
import pytest, torch, torch_outboard
from torch._inductor import config
from unit.triton_vendor import ToyDriver

config.compile_threads = 1
torch_outboard.attach(ToyDriver())
x = torch.randn(20, device="toychip")
parts = {"fx_wrapper": True, "graph_partition": True, "triton.cudagraphs": True}
with pytest.raises(Exception, match="NotSupportedError: .* set torch._inductor.config.graph_partition to False"):
    torch.compile(torch.sin, options=parts)(x)
torch._dynamo.reset()
compiled = torch.compile(torch.sin, options={**parts, "graph_partition": False})
torch.testing.assert_close(compiled(x).cpu(), x.cpu().sin())
"""


@needs_triton
def test_parts_of_a_graph_are_not_written_as_fx(run_compiler, tmp_path):
    run_compiler(PARTS, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})


@needs_triton
@pytest.mark.parametrize("wrapper", ["fx_wrapper", "cpp_wrapper"])
def test_values(run_compiler, tmp_path, wrapper):
    run_compiler(CODE, wrapper, "dynamic", env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})


@needs_triton
def test_formulas_in_cpp(tmp_path):
    """The formulas return the core's results, for numbers below 0 too."""
    import subprocess

    from torch_outboard import _extension
    from torch_outboard.compile.cpp.values import formula_in_cpp
    from torch_outboard.compile.triton.grid import evaluate

    numbers = [random.randint(-50, 50), random.randint(1, 20), -random.randint(1, 20)]
    formulas = [f"a0 {a} {how}" for how in ("floordiv", "ceildiv", "mod", "min", "max") for a in ("a1", "a2")]
    formulas += ["a0 a1 add a2 sub", "a0 a1 lt a2 3 mul mul", "a0 a1 ne", "a0 -3 ge"]
    header = _extension.header_path("compiled.h").read_text()
    helpers = header[header.index("// Divisions of formulas") : header.index("// An argument of a kernel")]
    lines = [
        f'std::printf("%ld ", {formula_in_cpp(formula, [f"{value}LL" for value in numbers])});' for formula in formulas
    ]
    (tmp_path / "a.cpp").write_text(
        "#include <algorithm>\n#include <cstdint>\n#include <cstdio>\n"
        f"namespace torch_outboard {{\n{helpers}}}\nint main() {{\n{chr(10).join(lines)}\n}}\n"
    )
    subprocess.run(["g++", "-std=c++17", str(tmp_path / "a.cpp"), "-o", str(tmp_path / "a")], check=True)
    printed = subprocess.run([str(tmp_path / "a")], check=True, capture_output=True, text=True).stdout.split()
    assert [int(number) for number in printed] == [evaluate(formula, numbers) for formula in formulas]
