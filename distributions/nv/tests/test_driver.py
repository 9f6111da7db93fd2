# SPDX-License-Identifier: BSD-3-Clause
"""The driver tests, and the loss of a GPU, on a stand-in for NVIDIA's driver library."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_outboard.testing import run_driver_tests, suite
from torch_outboard.testing.compiling import run
from torch_outboard_nv import NvDriver


def test_the_library_below_torch(programs, fakes, every_gpu):
    fake = fakes("fake_cuda", "libcuda.so.1")
    library = NvDriver.library
    assert library.exists(), f"{library} is missing: scripts/build makes it"
    run(programs(suite("native").folder / "test_driver.cpp"), library, env={"LD_LIBRARY_PATH": str(fake.parent)})
    run(programs(Path(__file__).with_name("test_nv.cpp")), library, env={"OB_FAKE": str(fake)})


def test_a_lost_cuda_device(run_program, fakes):
    run_program("lost_device.py", fakes("fake_cuda", "libcuda.so.1"))


def test_the_driver_tests_pass(fakes, every_gpu, monkeypatch):
    # Set through the loader's path, not as an option, so that processes started by tests find it
    # too.
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fakes("fake_cuda", "libcuda.so.1").parent))
    # Kernels do nothing on it, and programs are built for a chip that no compiler supports.
    monkeypatch.setenv("OUTBOARD_PROVIDERS", "native,host")
    left_out = [suite().folder / f"test_{name}.py" for name in ("device_programs", "launch")]
    # A CUDA build of torch finds the fake too, and warns that it is old.
    warning = ["-W", "ignore:CUDA initialization:UserWarning"]
    run_driver_tests("nv", arguments=["-q", *warning, "-k", "not inductor", *(f"--ignore={name}" for name in left_out)])


def test_the_driver_tests_pass_on_a_gpu(run_python):
    code = "import sys, torch_outboard; sys.exit(3 if torch_outboard.attach('nv').device_count() == 0 else 0)"
    if run_python(code, status=None).returncode == 3:
        pytest.skip("capability: an NVIDIA GPU")
    run_driver_tests("nv")
