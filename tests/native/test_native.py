# SPDX-License-Identifier: BSD-3-Clause
"""Tests without Python, compiled and run: the contract's header, the native drivers, the allocator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from native import allocator_program

from torch_outboard.driver import package_folders
from torch_outboard.drivers.vulkan import VulkanDriver
from torch_outboard.testing.compiling import compile_once, find_compiler, one_at_a_time, run, shared_folder

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LIBRARIES = ROOT / "torch_outboard" / "drivers" / "lib"
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Return the folder of what the run's processes compile once, and each process may use."""
    return shared_folder(tmp_path_factory, "native")


@pytest.fixture(scope="session")
def programs(compiled):
    """Return a function that compiles a test program once and returns its path."""

    def program(name: str) -> Path:
        flags = ["-O0", *STRICT, "-pthread", f"-I{ROOT / 'include'}"]
        return compile_once(compiled / name, *flags, HERE / f"{name}.cpp")

    return program


@pytest.mark.parametrize(
    ("tool", "standard", "source"), [("gcc", "c11", "driver_h_c.c"), ("g++", "c++20", "driver_h_cpp.cpp")]
)
def test_the_contract_compiles_alone(tool, standard, source):
    run(find_compiler(tool), f"-std={standard}", *STRICT, f"-I{ROOT / 'include'}", "-fsyntax-only", HERE / source)


@pytest.mark.parametrize(
    ("program", "driver"),
    [
        ("test_driver", "null"),
        *((test, "sim") for test in ("test_driver", "test_sim", "test_sim_lazy", "test_sim_memory")),
    ],
)
def test_native_drivers(programs, program, driver):
    library = LIBRARIES / f"libob_{driver}.so"
    assert library.exists(), f"{library} is missing: build the package first"
    run(programs(program), library)


@pytest.mark.parametrize("options", ["workers=1", "workers=4", *(f"schedule=lazy:{seed}" for seed in range(1, 21))])
def test_events_of_the_host(programs, options):
    run(programs("test_host_events"), LIBRARIES / "libob_sim.so", env={"OB_TEST_OPTIONS": options})


@pytest.fixture(scope="session")
def fakes(compiled):
    """Return a function that compiles a stand-in for a vendor's library, under the vendor's name."""

    def fake(name: str, library: str, *flags: str) -> Path:
        strict = ["-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
        return compile_once(compiled / library, *strict, HERE / f"{name}.cpp", "-Wl,--no-as-needed", *flags)

    return fake


def library_with_device(driver: str, capability: str) -> Path:
    """Return a driver's library; skip if it finds no device."""
    code = f"import sys, torch_outboard as o; sys.exit(0 if o.attach({driver!r}).device_count() > 0 else 3)"
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    status = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}).returncode
    assert status in (0, 3), f"counting the devices of {driver} ended with status {status}"
    if status != 0:
        pytest.skip(f"capability: {capability}. scripts/test-tools build/tools installs one or says how")
    return LIBRARIES / f"libob_{driver}.so"


@pytest.fixture(scope="session")
def opencl():
    """Return the library of the OpenCL driver; skip if it finds no device."""
    return library_with_device("opencl", "an OpenCL device")


def test_the_opencl_driver(programs, fakes, opencl, tmp_path):
    fake = fakes("fake_opencl", "libfake_opencl.so", "-l:libOpenCL.so.1")
    env = {"OB_FAKE": str(fake), "POCL_CACHE_DIR": str(tmp_path / "pocl")}
    run(programs("test_driver"), opencl, env=env)
    run(programs("test_opencl"), opencl, env=env, timeout=600)
    run(programs("test_host_events"), opencl, env=env)


@pytest.fixture(scope="session")
def vulkan():
    """Return the library of the Vulkan driver; skip if it finds no device."""
    return library_with_device("vulkan", "a Vulkan device")


def test_the_vulkan_driver(programs, fakes, vulkan):
    fake = fakes("fake_vulkan", "libfake_vulkan.so", f"-I{ROOT / 'include'}")
    compiler = VulkanDriver().option_values["slang"]
    env = {"OB_FAKE": str(fake)} | ({} if compiler is None else {"OB_SLANG": str(compiler)})
    run(programs("test_driver"), vulkan)
    run(programs("test_vulkan"), vulkan, env=env)
    run(programs("test_vulkan_calls"), vulkan, env=env)
    run(programs("test_host_events"), vulkan)


@pytest.fixture
def nvrtc() -> str:
    libraries = [path for folder in package_folders() for path in folder.glob("nvidia/*/lib/libnvrtc.so.1[3-9]")]
    if not libraries:
        pytest.skip("capability: NVRTC, of the package nvidia-cuda-nvrtc")
    return str(libraries[0])


@pytest.mark.parametrize(
    "chips", [pytest.param("75 90", marks=pytest.mark.database), pytest.param("80 100", marks=pytest.mark.long)]
)
def test_matrix_units_are_cuda(nvrtc, chips):
    """Kernels with matrix units compile with NVRTC, which needs no GPU, from sm_80 on and not before."""
    command = [sys.executable, HERE / "unit_texts.py", nvrtc, *chips.split()]
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, "OUTBOARD_FALLBACK": "silent"}
    result = subprocess.run(command, capture_output=True, text=True, env=env)
    assert result.returncode == 0, result.stderr
    *wrong, counts = result.stdout.splitlines()
    assert not wrong, result.stdout
    with_units, without = (int(word) for word in counts.split() if word.isdecimal())
    assert with_units > 20, counts
    assert without > 2, counts


@pytest.fixture(scope="session")
def on_the_allocator(compiled):
    """Return a function that runs a program with the core and the allocators, which are compiled once."""
    folder = compiled / "allocator"
    folder.mkdir(exist_ok=True)

    def run_program(name: str, argument: str) -> None:
        with one_at_a_time(folder):
            program = allocator_program.build(HERE / f"{name}.cpp", folder)
        print(allocator_program.run([str(program), argument]))

    return run_program


@pytest.mark.parametrize("program", ["test_allocator", "test_allocator_runs"])
def test_the_allocator(on_the_allocator, program):
    on_the_allocator(program, "20000")


def test_many_threads_for_a_moment(on_the_allocator):
    # For a minute and with sanitizers: tests/stress/test_allocator_threads.py.
    on_the_allocator("stress_allocator", "3")
