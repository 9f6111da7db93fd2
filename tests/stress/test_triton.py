# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in Triton: for other chips than the quick tests have, and in workers, some of which die."""

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


@pytest.mark.parametrize("chip", [8, 10, 12])
def test_other_chips(tmp_path, chip):
    library = tmp_path / "libcuda.so.1"
    compiler = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", str(NATIVE / "fake_cuda.cpp"), "-o", str(library)]
    subprocess.run([*compiler, "-ldl"], check=True)
    env = environment(tmp_path / "cache", FAKE_CUDA_MAJOR=str(chip), FAKE_CUDA_LAUNCHES=str(tmp_path / "launches"))
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(NATIVE / "cuda_triton.py"),
        str(library),
        "fx_wrapper",
        "cpp_wrapper",
    ]
    subprocess.run(command, check=True, env=env, timeout=600)


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
told = []
logging.getLogger("torch_outboard.compile.triton.launch").addFilter(lambda record: told.append(record.getMessage()))

def check(f):
    torch._dynamo.reset()
    x, y = torch.randn(20, 30), torch.randn(20, 30)
    torch.testing.assert_close(torch.compile(f)(x.to("toychip"), y.to("toychip")).cpu(), f(x, y), atol=1e-5, rtol=1e-5)

check(lambda x, y: (x * y + 1).sum(0).exp() + y.sum(-1).sum())
assert not in_parent and not told, (in_parent, told)

# The vendor's module ends every process but this one.
triton_vendor.ToyDriver.target = __import__("dataclasses").replace(driver.target, module="unit.triton_dies")
sys.modules["unit.triton_dies"] = triton_vendor
check(lambda x, y: x - y * 2)
assert in_parent and "a worker could not compile" in told[0], (in_parent, told)
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
assert driver.launched and {language for _, language, _ in driver.built} == {"toycode"}
"""


def test_packages(tmp_path):
    for number, done in enumerate(("make", "load")):
        env = environment(tmp_path / str(number))
        subprocess.run([sys.executable, "-c", PACKAGE, str(tmp_path), done], check=True, env=env, timeout=600)
