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
    command = [sys.executable, "-W", "ignore", str(NATIVE / "cuda_triton.py"), str(library)]
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
