# SPDX-License-Identifier: BSD-3-Clause
"""A program's own kernels in Triton, on a vendor's chip: called directly, and compiled."""

from __future__ import annotations

from unit.test_triton import needs_triton

BEGIN = """
import random, pytest, torch, torch_outboard
from torch._inductor import config
from unit.triton_vendor import ToyDriver

config.compile_threads = 1
driver = ToyDriver()
torch_outboard.attach(driver)
from unit import triton_kernels as own  # which imports Triton

def reference(x):
    return ((x * 2.5 + 1).sin() + x) * 2
"""

EAGER = """
import triton

n = random.randint(50, 90)
x = torch.randn(n)
for place in ("toychip", "toychip:1", "toychip"):
    there = x.to(place)
    torch.testing.assert_close(own.scaled(there, 2.5).cpu(), x * 2.5)
    torch.testing.assert_close(own.scaled(there, 0.5, True).cpu(), x * 0.5 + 1)
built = len(driver.built)
own.scaled(there, 1.5)
assert len(driver.built) == built, "it was compiled again"
name, grid, block, shared, arguments = driver.launched[-1]
assert (name, grid, block, shared) == ("scale", (-(-n // 32), 1, 1), (64, 1, 1), 64)
assert [len(value) for kind, value in arguments if kind] == [4, 4, 1]

# Configurations are measured by the device's events, once.
for size in (n, 64):
    given, y = torch.randn(size), torch.full((size,), 7.0, device="toychip")
    own.copy[own.blocks(size)](given.to("toychip"), y, size)
    torch.testing.assert_close(y.cpu(), given)
count = len(driver.launched)
own.copy[own.blocks(64)](y, y.clone(), 64)
assert len(driver.launched) == count + 1
z = torch.ones(n, device="toychip")
for turn in range(2):
    own.accumulate[own.blocks(n)](z, there, n)
torch.testing.assert_close(z.cpu(), 1 + 2 * x)

# Tuples, what is None, numbers of 8 and 64 bits.
a, b, out = (torch.full((1,), value, device="toychip") for value in (2.0, 3.0, 0.0))
own.numbers[(1,)]((a, b), out, None, True, 5 << 32)
assert out.item() == 11.0
own.numbers[(1,)]((a, b), out, a, False, 2**64 - 2**32)
assert out.item() == 2.0**32
count = len(driver.launched)
own.numbers[(0,)]((a, b), out, a, False, 1 << 40)
assert len(driver.launched) == count

# As a step of a graph.
y = torch.zeros(n, device="toychip")
graph = torch.toychip.Graph()
with torch.toychip.graph(graph):
    own.accumulate.fn[own.blocks(n)](y, there, n, BLOCK=16)
for turn in range(3):
    graph.replay()
torch.testing.assert_close(y.cpu(), 3 * x)

with pytest.raises(ValueError, match="the compiled kernel scale"):
    own.scale[(1,)](there, torch.empty(n), n, 2.0, False, BLOCK=32)
driver.refuses = lambda grid, shared: True
with pytest.raises(ValueError, match="kernel_launch .scale.*are more than there are"):
    own.scaled(there, 2.5)
with pytest.raises(ValueError, match="kernel_launch .copy.*are more than there are"):
    own.copy[own.blocks(33)](there, there.clone(), 33)
driver.refuses = lambda grid, shared: False
driver.target = __import__("dataclasses").replace(ToyDriver.target, backend="nochip")
with pytest.raises(torch_outboard.NotSupportedError, match="the installed Triton does not support the target 'nochip'"):
    own.scaled(there, 2.5)
"""

COMPILED = """
given = [torch.randn(n) for n in random.sample(range(40, 120), 3)]
for dynamic in (None, True):
    torch._dynamo.reset()
    compiled = torch.compile(own.accumulated, fullgraph=True, dynamic=dynamic)
    for x in given:
        torch.testing.assert_close(compiled(x.to("toychip")).cpu(), reference(x))
assert {"scale", "accumulate"} <= {name for name, *_ in driver.launched}

torch.testing.assert_close(own.thrice(x.to("toychip")).cpu(), x * 3)
compiled = torch.compile(lambda x: own.thrice(x * 2) + 1, fullgraph=True)
torch.testing.assert_close(compiled(x.to("toychip:1")).cpu(), x * 6 + 1)

# In place on an argument, of which measuring leaves one change.
def add(y, x):
    own.accumulate[own.blocks(x.numel())](y, x, x.numel())

torch._dynamo.reset()
y = torch.ones(len(x), device="toychip")
for turn in range(3):
    torch.compile(add, fullgraph=True)(y, x.to("toychip"))
torch.testing.assert_close(y.cpu(), 1 + 3 * x)

compiled = torch.compile(own.accumulated, mode="reduce-overhead")
for turn in range(4):
    x = torch.randn(70)
    torch.testing.assert_close(compiled(x.to("toychip")).cpu(), reference(x))
assert torch._dynamo.utils.counters["outboard"]["graph_replays"] > 0
"""


@needs_triton
def test_a_kernel_is_launched_by_its_tensors_device(run_compiler, tmp_path):
    run_compiler(BEGIN + EAGER, env={"TRITON_CACHE_DIR": str(tmp_path)})


@needs_triton
def test_a_kernel_within_a_compiled_function(run_compiler, tmp_path):
    run_compiler(BEGIN + COMPILED, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})
