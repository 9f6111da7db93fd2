# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in Triton for a vendor outside Triton: its back end, its driver, its hidden arguments."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="capability: Triton, which torch for the CPU lacks"
)


@pytest.mark.parametrize(
    "expression",
    [
        "7",
        "-(-3)",
        "-((xnumel) // -(32))",
        "(xnumel + 31) // 32 * ynumel - 1",
        "max(xnumel, ynumel, 5) % min(7, ynumel)",
        "-((-((xnumel) // -(16))) // -(ynumel))",
        "(xnumel < ynumel) + 2 * (xnumel != 5)",
    ],
)
def test_grids_are_formulas(expression):
    from torch_outboard import _C
    from torch_outboard.codegen.program import KernelRecord
    from torch_outboard.compile.triton.grid import evaluate, formula_of

    formula = formula_of(expression, {"xnumel": "a0", "ynumel": "a1"})
    record = KernelRecord("k", "none", b"", "", "k", "ii", (formula, "1", "1", "1", "1", "1", "0"))
    _C.device_kernel(record)  # takes the formula
    for _ in range(20):
        x, y = random.randint(1, 10**6), random.randint(1, 1000)
        assert evaluate(formula, (x, y)) == eval(expression, {"xnumel": x, "ynumel": y})


def test_a_divisor_of_0_is_a_grid_of_0():
    from torch_outboard.compile.triton.grid import evaluate, formula_of

    formula = formula_of("(0 if n == 0 else -((m) // -(n)))", {"m": "a0", "n": "a1"})
    assert [evaluate(formula, (10, n)) for n in (0, 3, 10)] == [0, 4, 1]
    with pytest.raises(ValueError, match=r"from 'm \*\* 2', which is not a supported formula"):
        formula_of("m ** 2", {"m": "a0"})


BEGIN = """
import dataclasses, logging, os, pathlib, random, pytest, torch, torch_outboard
from torch._inductor import config
from unit.triton_vendor import ToyDriver
from torch_outboard.compile.triton import binary, launch

config.compile_threads = 1
driver = ToyDriver()
torch_outboard.attach(driver)
folder = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])

def check(f, *inputs, **options):
    torch._dynamo.reset()
    count = len(driver.launched)
    got = torch.compile(f, fullgraph=True, **options)(*(tensor.to("toychip") for tensor in inputs))
    torch.testing.assert_close(got.cpu(), f(*inputs), atol=1e-5, rtol=1e-5)
    assert {language for _, language, _ in driver.built} <= {"own_triton_ir"}
    assert len(driver.launched) > count
    return driver.launched[-1]

def pointwise(x, y):
    return torch.relu(x) * y + 1

def files():
    return {path: path.stat().st_mtime_ns for path in folder.glob("outboard_triton/*/*")}
"""

VALUES = """
n = random.randint(30, 60)
x, y = torch.randn(n, 50), torch.randn(n, 50)
name, grid, block, shared, arguments = check(pointwise, x, y)
assert (grid[1:], block[0] % 16, shared, len(arguments)) == ((1, 1), 0, 64, 6), (grid, block, shared, arguments)
check(lambda x: x.softmax(-1), x)
# Sums of what doesn't cancel: their rounding is far below the bounds in any order.
check(lambda x: x.sum(0), x.abs())
check(lambda x: (x * 2).sum(), torch.rand(n * 97))  # one result: a number of elements that is written into the kernel
check(lambda x: torch.nn.functional.layer_norm(x, (50,)), x)
check(lambda x, y: x.t() + y, x[:30, :30], y[:30, :30])

# Sizes as arguments: one kernel for all.
torch._dynamo.reset()
compiled = torch.compile(lambda x, y: (x * y).exp().sum(-1), dynamic=True)
built = None
for rows, columns in ((5, 7), (33, 19), (2, 600)):
    x, y = torch.randn(rows, columns), torch.randn(rows, columns)
    got = compiled(x.to("toychip"), y.to("toychip"))
    torch.testing.assert_close(got.cpu(), (x * y).exp().sum(-1), atol=1e-5, rtol=1e-5)
    assert built in (None, len(driver.built)), "another kernel"
    built = len(driver.built)

# In place, where measuring must not change what is measured; and on the second device.
x = torch.randn(300)
there = x.to("toychip:1")
torch._dynamo.reset()
torch.compile(lambda x: x.mul_(2).add_(1))(there)
torch.testing.assert_close(there.cpu(), x * 2 + 1)

# As a graph of launches.
torch._dynamo.reset()
compiled = torch.compile(pointwise, mode="reduce-overhead")
for _ in range(4):
    x, y = torch.randn(20, 50), torch.randn(20, 50)
    torch.testing.assert_close(compiled(x.to("toychip"), y.to("toychip")).cpu(), pointwise(x, y))
assert torch._dynamo.utils.counters["outboard"]["graph_replays"] > 0
"""

# The same in a second process, whose caches of graphs are off.
KEPT = """
config.fx_graph_cache = False
x, y = torch.randn(33, 50), torch.randn(33, 50)
def no(*given):
    raise AssertionError(given[:1])
if files():
    launch.milliseconds = launch.compile_kernel = no
kept = files()
name, grid, block, *_ = check(pointwise, x, y)
assert not kept or files() == kept
print(grid, block)
"""

DAMAGED = """
config.fx_graph_cache = False
x, y = torch.randn(33, 50), torch.randn(33, 50)
kept = files()
damaged = [path for path in kept if b"variants" in path.read_bytes()]
assert damaged
for path in damaged:
    path.write_bytes(path.read_bytes().replace(b"A", b"B"))
reported = []
logging.getLogger("torch_outboard.compile.triton.store").addFilter(lambda record: reported.append(record.getMessage()))
check(pointwise, x, y)
assert any("has changed on disk" in message for message in reported), reported
assert all(b"variants" in path.read_bytes() for path in damaged)
reported.clear()
check(pointwise, x, y)
assert not reported
"""

BAD_INPUT = """
import sys
from torch_outboard.compile.triton import generator

config.fx_graph_cache = False  # whose key has the target as it was first
x, y = torch.randn(33, 50), torch.randn(33, 50)

def fails(match, f=pointwise, **options):
    torch._dynamo.reset()
    with pytest.raises(Exception, match=match):
        torch.compile(f, **options)(x.to("toychip"), y.to("toychip"))

good = ToyDriver.target
driver.target = dataclasses.replace(good, backend="nochip")
fails("the installed Triton does not support the target 'nochip', 't1' .*own_triton")
driver.target = dataclasses.replace(good, language="cubin")
fails("produces .*own_triton_ir, but the target's language is 'cubin'")
driver.target = dataclasses.replace(good, options=(("num_ctas", 2),))
fails("has clusters of 2 blocks, which launches do not support")
driver.target = dataclasses.replace(good, options=(("shared", 5000),))
fails("none of the . configurations of the kernel .* runs: .*5000 bytes of shared memory are more than there are")
driver.target = dataclasses.replace(good, module="unit.no_such_module")
fails("importing Triton failed .No module named 'unit.no_such_module'")
from examples.own_triton.backend import OwnTritonBackend
version = OwnTritonBackend.hash
def no_assembler(self):
    raise RuntimeError("Cannot find ptxas")
OwnTritonBackend.hash = no_assembler
driver.target = dataclasses.replace(good, arch="t2")
fails("back end 'own_triton' can't compile for 't2': Cannot find ptxas. Install the tools that it runs")
OwnTritonBackend.hash = version
driver.target = good
own = generator.wanted_triton
generator.wanted_triton = lambda: "1.2.0"
fails("needs Triton 1.2.0, but Triton .* is installed: install triton==1.2.0")
generator.wanted_triton = own
found = sys.modules.pop("triton.backends.compiler")
sys.modules["triton.backends.compiler"] = None
fails("importing Triton failed")
sys.modules["triton.backends.compiler"] = found
with pytest.raises(torch_outboard.NotSupportedError, match="does not implement `triton_target`"):
    torch_outboard.Driver.triton_target(driver, 0)

# What was the fastest is known of one chip, and of no other.
from torch_outboard.compile.triton.store import Choice
Choice(["a kernel"], "a chip").write("a configuration")
assert Choice(["a kernel"], "a chip").read() == "a configuration"
assert Choice(["a kernel"], "another chip").read() is None

# One configuration that can't run leaves the others.
driver.refuses = lambda grid, shared: grid[0] > 10
name, grid, *_ = check(lambda x, y: x * y - 3, x, y)
assert grid[0] <= 10
"""


@needs_triton
@pytest.mark.parametrize("code", [VALUES, BAD_INPUT], ids=["values", "bad input"])
def test_kernels_of_a_vendor(run_compiler, tmp_path, code):
    run_compiler(BEGIN + code, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})


@needs_triton
def test_binaries_and_choices_are_kept(run_compiler, tmp_path):
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    first, second = (run_compiler(BEGIN + KEPT, env=env).stdout for _ in range(2))
    assert first == second
    run_compiler(BEGIN + DAMAGED, env=env)


@needs_triton
def test_binaries_are_kept_under_the_assembler_that_makes_them(run_python):
    """Workers use torch's assembler; a process whose parent has named it finds the same binaries."""
    from torch.utils.cpp_extension import _TORCH_PATH

    assembler = Path(_TORCH_PATH) / "bin" / "ptxas"
    if not assembler.exists():
        pytest.skip("capability: the assembler that torch's builds for CUDA bring")
    code = """
from torch_outboard.compile.triton.store import _versions
from torch_outboard.driver import TritonTarget
print(_versions(TritonTarget("cuda", 90, "cubin", 32)))
"""
    named = run_python(code, env={"TRITON_PTXAS_PATH": str(assembler)}, fresh=True).stdout
    assert run_python(code, fresh=True).stdout == named
