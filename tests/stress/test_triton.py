# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in Triton: real models, and workers, some of which die."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="capability: Triton, which torch for the CPU lacks")

NATIVE = Path(__file__).resolve().parents[1] / "native"


def environment(folder: Path, **more: str) -> dict[str, str]:
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "OUTBOARD_FALLBACK": "silent"}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **cache, **more}


def test_kernels_compile_without_a_gpu(tmp_path):
    env = environment(tmp_path)
    subprocess.run([sys.executable, "-W", "ignore", str(NATIVE / "compile_only.py")], check=True, env=env, timeout=900)


WORKERS = """
import logging, os, sys, torch, torch_outboard
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from unit import triton_vendor
from torch_outboard.compile.triton import launch

config.compile_threads = 2
config.fx_graph_cache = False
driver = triton_vendor.ToyDriver()
torch_outboard.attach(driver)
AsyncCompile.wait_pool_ready()
in_parent = []
compile_kernel = launch.compile_kernel
launch.compile_kernel = lambda *given: (in_parent.append(given[0]), compile_kernel(*given))[1]
reported = []
logging.getLogger("torch_outboard.compile.triton.launch").addFilter(lambda record: reported.append(record.getMessage()))

def check(f):
    torch._dynamo.reset()
    x, y = torch.randn(20, 30), torch.randn(20, 30)
    torch.testing.assert_close(torch.compile(f)(x.to("toychip"), y.to("toychip")).cpu(), f(x, y), atol=1e-5, rtol=1e-5)

check(lambda x, y: (x * y + 1).sum(0).exp() + y.sum(-1).sum())
assert not in_parent and not reported, (in_parent, reported)

# The vendor's module ends every process but this one.
triton_vendor.ToyDriver.target = __import__("dataclasses").replace(driver.target, module="unit.triton_dies")
sys.modules["unit.triton_dies"] = triton_vendor
check(lambda x, y: x - y * 2)
assert in_parent and "a worker could not compile" in reported[0], (in_parent, reported)
"""


def test_workers(tmp_path):
    env = environment(tmp_path / "cache")
    subprocess.run([sys.executable, "-c", WORKERS], check=True, env=env, timeout=600)


@pytest.mark.parametrize("wrapper", ["fx_wrapper", "cpp_wrapper"])
def test_wrappers(tmp_path, wrapper):
    from unit.test_triton_wrappers import CODE

    command = [sys.executable, "-c", CODE, wrapper, "static", "dynamic"]
    subprocess.run(command, check=True, env=environment(tmp_path), timeout=600)


PACKAGE = """
import random, sys, torch, torch_outboard
from torch._inductor import config
from unit.triton_vendor import ToyDriver

config.compile_threads = 1
driver = ToyDriver()
torch_outboard.attach(driver)
folder, is_made = sys.argv[1:]
torch.manual_seed(int(folder.encode().hex(), 16) % 1000)
weight = torch.randn(50)

class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(weight.to("toychip"))

    def forward(self, x):
        from unit import triton_kernels as own
        z = torch.relu(x) * self.weight + 1
        return z.softmax(-1) + own.thrice(z), own.thrice(x.sum(-1)).sin()

def reference(x):
    z, total = torch.relu(x) * weight + 1, x.sum(-1)
    return z.softmax(-1) + z * 3, (total * 3).sin()

with torch.no_grad():
    if is_made == "make":
        n = torch.export.Dim("n", min=2, max=100)
        program = torch.export.export(Module(), (torch.randn(20, 50, device="toychip"),), dynamic_shapes=({0: n},))
        torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/model.pt2")
    else:
        # The package has the kernels, and nothing is compiled or measured.
        from torch_outboard.compile.triton import binary, launch
        launch.compile_kernel = launch.milliseconds = None
    for device in (0, 1):
        model = torch._inductor.aoti_load_package(f"{folder}/model.pt2", device_index=device)
        for n in random.sample(range(2, 100), 3):
            x = torch.randn(n, 50)
            for got, wanted in zip(model(x.to(f"toychip:{device}")), reference(x), strict=True):
                torch.testing.assert_close(got.cpu(), wanted, atol=1e-4, rtol=1e-4)
assert driver.launched and {language for _, language, _ in driver.built} == {"own_triton_ir"}
"""


def test_packages(tmp_path):
    for number, done in enumerate(("make", "load")):
        env = environment(tmp_path / str(number))
        subprocess.run([sys.executable, "-c", PACKAGE, str(tmp_path), done], check=True, env=env, timeout=600)


FEATURES = """
import copy, itertools, random, sys, torch, torch_outboard
from torch._inductor import config
from unit.triton_vendor import ToyDriver

config.compile_threads = 1
driver = ToyDriver()
torch_outboard.attach(driver)
from unit import triton_kernels as own

counters = torch._dynamo.utils.counters["outboard"]

def same(got, wanted, bound=1e-5):
    torch.testing.assert_close(got.cpu(), wanted, atol=bound, rtol=bound)

def launches(call):
    count = len(driver.launched)
    call()
    return [name for name, *_ in driver.launched[count:]]
"""

LISTS = """
def step(xs, ys):
    torch._foreach_mul_(xs, 0.5)
    torch._foreach_add_(xs, ys, alpha=2.0)
    return torch._foreach_sqrt(torch._foreach_abs(xs))

given = [torch.randn(random.randint(1, 80)) for _ in range(5)]
ones = [torch.ones_like(tensor) for tensor in given]
there, ones_there = ([tensor.to("toychip") for tensor in several] for several in (given, ones))
compiled = torch.compile(step, fullgraph=True)
for got, wanted in zip([*compiled(there, ones_there), *there], [*step(given, ones), *given], strict=True):
    same(got, wanted)
assert len(launches(lambda: compiled(there, ones_there))) == 1

model = torch.nn.Linear(8, 4)
model_there = copy.deepcopy(model).to("toychip")
x = torch.randn(6, 8)
for net, device in ((model, "cpu"), (model_there, "toychip")):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    step = optimizer.step if device == "cpu" else torch.compile(optimizer.step)
    for _ in range(3):
        optimizer.zero_grad()
        net(x.to(device)).square().mean().backward()
        step()
for got, wanted in zip(model_there.parameters(), model.parameters(), strict=True):
    same(got.detach(), wanted.detach())
"""

RANDOM = """
@torch.compile
def draw(x):
    return (
        torch.rand_like(x),
        torch.randn(50, device=x.device),
        torch.randint(0, 9, (40,), device=x.device),
        torch.nn.functional.dropout(x, 0.3),
    )

x = torch.ones(400, device="toychip")
torch.manual_seed(3)
first, second = draw(x), draw(x)
torch.manual_seed(3)
for a, b, again in zip(first, second, draw(x), strict=True):
    assert torch.equal(a.cpu(), again.cpu()) and not torch.equal(a.cpu(), b.cpu())
uniform, normal, integers, kept = (tensor.cpu() for tensor in first)
assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.1
assert abs(normal.mean()) < 0.7 and 0.5 < normal.std() < 1.5
assert set(integers.tolist()) <= set(range(9)) and len(set(integers.tolist())) > 3
assert set(kept.tolist()) == {0.0, torch.tensor(1 / 0.7).item()}

config.fallback_random = True
torch._dynamo.reset()
eager = lambda x: torch.rand_like(x) * 2
torch.manual_seed(3)
wanted = eager(x)
torch.manual_seed(3)
assert torch.equal(torch.compile(eager)(x).cpu(), wanted.cpu())
"""

TRAINING = """
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
there = copy.deepcopy(model).to("toychip")
x, y = torch.randn(12, 8), torch.randint(4, (12,))

def loss(model, x, y):
    return torch.nn.functional.cross_entropy(model(x), y)

loss(model, x, y).backward()
for mode in ("default", "reduce-overhead"):
    torch._dynamo.reset()
    compiled = torch.compile(loss, mode=mode)
    for _ in range(3):
        there.zero_grad()
        compiled(there, x.to("toychip"), y.to("toychip")).backward()
    for got, wanted in zip(there.parameters(), model.parameters(), strict=True):
        same(got.grad, wanted.grad, 1e-4)
assert counters["graph_replays"] >= 2

# An index out of bounds: the kernel's assertion.
torch._dynamo.reset()
compiled = torch.compile(lambda x, y: x[y] * 2)
same(compiled(x.to("toychip"), y.to("toychip")), x[y] * 2)
try:
    compiled(x.to("toychip"), (y + 12).to("toychip"))
    torch.accelerator.synchronize()
except torch_outboard.DriverError as error:
    assert "index out of bounds" in str(error)
else:
    raise AssertionError("no error")
same(compiled(x.to("toychip"), y.to("toychip")), x[y] * 2)
"""

GRAPHS = """
def function(x, w, y):
    y.add_(1)
    return torch.nn.functional.dropout((x * w).relu().sum(-1), 0.5) + own.scaled(x[:, 0].contiguous(), 2.0)

compiled = torch.compile(function, mode="reduce-overhead", dynamic=True)
w = torch.nn.Parameter(torch.randn(10, device="toychip"))
y = torch.nn.Buffer(torch.zeros(3, device="toychip"))
for turn, n in enumerate((5, 9, 5, 9, 5, 9)):
    x = torch.randn(n, 10)
    out = compiled(x.to("toychip"), w, y)
    rest, whole = out.detach().cpu() - 2 * x[:, 0], (x * w.detach().cpu()).relu().sum(-1)
    assert ((rest.abs() < 1e-4) | ((rest - 2 * whole).abs() < 1e-3)).all()
    out.sum().backward()

# On streams of their own; memory in between is poisoned by others' use of it.
compiled = torch.compile(lambda x: own.scaled(x * 2, 3.0).cumsum(-1))
streams = [torch.Stream("toychip") for _ in range(3)]
for n in (64, 100):
    given = [torch.randn(n) for _ in streams]
    found = []
    for stream, x in zip(streams, given, strict=True):
        with stream:
            found.append(compiled(x.to("toychip")))
    for stream, x, got in zip(streams, given, found, strict=True):
        stream.synchronize()
        same(got, (x * 6).cumsum(-1), 1e-4)

if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):
    side = torch.Stream("toychip")

    def two(x):
        y = x * 2
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            z = own.scaled(y + 1, 3.0)
        torch.accelerator.current_stream().wait_stream(side)
        return z + y

    for options in ({}, {"cpp_wrapper": True}, {"fx_wrapper": True}):
        torch._dynamo.reset()
        x = torch.randn(64)
        same(torch.compile(two, options=options)(x.to("toychip")), (x * 2 + 1) * 3 + x * 2)
"""


@pytest.mark.parametrize("code", [LISTS, RANDOM, TRAINING, GRAPHS], ids=["lists", "random", "training", "graphs"])
def test_features(tmp_path, code):
    subprocess.run([sys.executable, "-c", FEATURES + code], check=True, env=environment(tmp_path), timeout=600)


def test_a_made_project(tmp_path, run_python):
    from unit.test_new import build_and_test

    build_and_test("triton", "python", tmp_path, run_python)
