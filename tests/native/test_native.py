# SPDX-License-Identifier: BSD-3-Clause
"""Tests without Python, compiled and run: the contract's header, the native drivers, the allocator."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from native import allocator_program

from torch_outboard.drivers.nv import NvDriver
from torch_outboard.drivers.vulkan import VulkanDriver
from torch_outboard.testing.fork_server import COMPILER

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LIBRARIES = ROOT / "torch_outboard" / "drivers" / "lib"
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def environment(more: dict[str, str]) -> dict[str, str]:
    """Return the environment of a program; a variable that hides the machine's GPUs must not hide a stand-in's."""
    return {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"} | more


def run(*command: str | Path, timeout: float = 300, env: dict[str, str] | None = None) -> None:
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, timeout=timeout, env=environment(env or {}))
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}\n{result.stderr}"


def compiler(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is needed to compile the native tests"
    return found


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Return the folder of what the run's processes compile once, and each process may use."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "native"
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def one_at_a_time(path: Path):
    """Let one process of the run make what belongs to a path, while others that need it wait."""
    with open(path.with_name(path.name + ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def programs(compiled):
    """Return a function that compiles a test program once and returns its path."""

    def program(name: str) -> Path:
        path = compiled / name
        with one_at_a_time(path):
            if not path.exists():
                flags = ["-std=c++20", "-O0", *STRICT, "-pthread", f"-I{ROOT / 'include'}"]
                run(compiler("g++"), *flags, HERE / f"{name}.cpp", "-o", path, "-ldl")
        return path

    return program


@pytest.mark.parametrize(
    ("tool", "standard", "source"), [("gcc", "c11", "driver_h_c.c"), ("g++", "c++20", "driver_h_cpp.cpp")]
)
def test_the_contract_compiles_alone(tool, standard, source):
    run(compiler(tool), f"-std={standard}", *STRICT, f"-I{ROOT / 'include'}", "-fsyntax-only", HERE / source)


@pytest.mark.parametrize(
    ("program", "driver"),
    [
        ("test_driver", "null"),
        *((one, "sim") for one in ("test_driver", "test_sim", "test_sim_lazy", "test_sim_memory")),
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
        path = compiled / library
        with one_at_a_time(path):
            if not path.exists():
                sources = ["-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", HERE / f"{name}.cpp"]
                run(compiler("g++"), *sources, "-o", path, "-Wl,--no-as-needed", *flags, "-ldl")
        return path

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


def test_the_cuda_driver_on_a_fake(programs, fakes):
    fake = fakes("fake_cuda", "libcuda.so.1")
    library = LIBRARIES / "libob_nv.so"
    run(programs("test_driver"), library, env={"LD_LIBRARY_PATH": str(fake.parent)})
    run(programs("test_nv"), library, env={"OB_FAKE": str(fake)})


@pytest.fixture
def nvrtc() -> str:
    path = NvDriver().option_values["nvrtc"]
    if path is None:
        pytest.skip("capability: NVRTC, of the package nvidia-cuda-nvrtc")
    return str(path)


def python_env(**more: str) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), "OUTBOARD_FALLBACK": "silent", **more}


# What `python PROGRAM` does.
PROGRAM = """
import os, runpy, sys
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def run_program(run_python, monkeypatch):
    """Return a function that runs a Python program of this folder; the process has imported torch's compiler."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # as in environment()

    def run_it(name: str, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in (HERE / name, *arguments)]
        return run_python(PROGRAM, *words, env={"OUTBOARD_FALLBACK": "silent", **variables}, imports=COMPILER)

    return run_it


def test_a_lost_cuda_device(run_program, fakes):
    run_program("lost_device.py", fakes("fake_cuda", "libcuda.so.1"))


def test_products_by_the_vendors_library(run_program, fakes):
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cublaslt", "libcublasLt.so.13")]
    run_program("vendor_products.py", *libraries)


def test_convolutions_by_the_vendors_library(run_program, fakes):
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    run_program("vendor_convolutions.py", *libraries)


def test_plans_of_the_vendors_library_are_kept(run_program, fakes, tmp_path):
    """A later process takes the plans of an earlier one, unless the library is another or the files are damaged."""
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    variables = {"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path / "cache")}

    def searches(**more: str) -> int:
        found, engine = run_program("kept_plans.py", *libraries, **variables, **more).stdout.split()
        assert engine == "0"
        return int(found)

    assert searches() == 6
    assert searches() == 0
    assert searches(OB_FAKE_CUDNN_VERSION="91800") == 6, "plans of another version"
    kept = sorted((tmp_path / "cache" / "programs").iterdir())
    assert len(kept) == 12
    for path in kept:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert searches() == 6
    assert searches() == 0
    variables["OUTBOARD_KERNEL_CACHE_DIR"] = ""
    assert searches() == 6


@pytest.mark.usefixtures("nvrtc")
def test_attention_by_the_vendors_library(run_program, fakes):
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    run_program("vendor_attention.py", *libraries, FAKE_CUDA_MAJOR="9")


def test_recurrent_nets_by_the_vendors_library(run_program, fakes):
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    run_program("vendor_recurrent.py", *libraries, FAKE_CUDA_MAJOR="9")


@pytest.mark.parametrize(("chip", "version"), [("9", "91200"), ("7", "91900")])
def test_recurrent_nets_without_bfloat16(run_program, fakes, chip, version):
    variables = dict(FAKE_CUDA_MAJOR=chip, OB_FAKE_CUDNN_VERSION=version, OB_TEST_NO_BRAIN="1")
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    run_program("vendor_recurrent.py", *libraries, **variables)


def test_a_library_without_recurrent_nets(run_program, fakes):
    libraries = [
        fakes("fake_cuda", "libcuda.so.1"),
        fakes("fake_cudnn", "libcudnn_without_recurrent.so.9", "-DOB_FAKE_WITHOUT_RECURRENT"),
    ]
    run_program("no_cudnn.py", *libraries, "recurrent", FAKE_CUDA_MAJOR="9")


@pytest.mark.parametrize("way", ["80907", "missing", "memory"])
def test_without_the_vendors_library(run_program, fakes, way, tmp_path):
    """Without the library, with one that is too old, or without memory for it, calls go another way."""
    library = tmp_path / "libcudnn.so.9" if way == "missing" else fakes("fake_cudnn", "libcudnn.so.9")
    more = {"80907": {"OB_FAKE_CUDNN_VERSION": way}, "memory": {"OB_FAKE_CUDNN_WORKSPACE": str(1 << 29)}}
    variables = dict(FAKE_CUDA_MAJOR="9", **more.get(way, {}))
    run_program("no_cudnn.py", fakes("fake_cuda", "libcuda.so.1"), library, **variables)


@pytest.mark.parametrize("version", ["90800", "91000", "91001"])
def test_attention_by_versions_that_cannot(run_program, fakes, version):
    variables = dict(FAKE_CUDA_MAJOR="9", OB_FAKE_CUDNN_VERSION=version)
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    run_program("no_cudnn.py", *libraries, "attention", **variables)


def test_the_driver_tests_on_a_fake_cuda(fakes):
    # By the loader's path, not as an option, so that the processes that tests start find it too.
    env = python_env(LD_LIBRARY_PATH=str(fakes("fake_cuda", "libcuda.so.1").parent))
    # Kernels do nothing there, and programs are built for a chip that no compiler knows.
    env["OUTBOARD_PROVIDERS"] = "native,host"
    # A CUDA build of torch finds the fake too, and complains that it is old.
    options = ["-q", "-p", "no:cacheprovider", "--driver=nv", "-W", "ignore:CUDA initialization:UserWarning"]
    options += ["-k", "not inductor"]
    options += [f"--ignore={ROOT / 'tests' / 'driver' / name}.py" for name in ("test_device_programs", "test_launch")]
    run(sys.executable, "-m", "pytest", ROOT / "tests" / "driver", *options, env=env, timeout=900)


@pytest.fixture
def run_own_kernels(run_program, fakes, tmp_path):
    """Return a function that runs the driver's own kernels with a compiler, on a chip."""

    def run_them(nvrtc: str | Path, chip: str) -> None:
        variables = {"FAKE_CUDA_LAUNCHES": str(tmp_path / "launches"), "OUTBOARD_PROVIDERS": "native"}
        library = fakes("fake_cuda", "libcuda.so.1")
        run_program("own_kernels.py", library, nvrtc, FAKE_CUDA_MAJOR=chip, **variables)

    return run_them


@pytest.mark.parametrize("chip", ["9", "12"])
def test_the_drivers_own_kernels(run_own_kernels, nvrtc, chip):
    """NVRTC compiles them for the chip at their first use, and the launches fit what it compiled."""
    run_own_kernels(nvrtc, chip)


# How much of the database is compiled for chips that NVRTC 13 has dropped.
OLD_CHIPS = {"24": pytest.mark.database, "1": pytest.mark.long}


def test_own_kernels_without_a_compiler(run_own_kernels, tmp_path):
    run_own_kernels(tmp_path / "missing", "9")


def test_own_kernels_for_a_chip_that_the_compiler_does_not_know(run_own_kernels, nvrtc):
    run_own_kernels(nvrtc, "3")


@pytest.mark.parametrize(
    ("chip", "share"),
    [
        ("9", "24"),
        pytest.param("9", "4", marks=pytest.mark.long),
        # Maxwell, Pascal and Volta, for which NVRTC 12 compiles.
        *(pytest.param(chip, share, marks=mark) for chip in "567" for share, mark in OLD_CHIPS.items()),
    ],
)
@pytest.mark.usefixtures("nvrtc")
def test_generated_kernels_are_cuda(fakes, chip, share):
    """A part of the operator database's kernels compile with NVRTC, which needs no GPU."""
    library = fakes("fake_cuda", "libcuda.so.1")
    env = python_env(FAKE_CUDA_MAJOR=chip)
    result = subprocess.run(
        [sys.executable, HERE / "cuda_texts.py", library, share], capture_output=True, text=True, env=environment(env)
    )
    assert result.returncode == 0, result.stderr
    *different, count = result.stdout.splitlines()
    assert not different, "\n".join(different)
    assert int(count.split()[0]) > 400 / int(share)


@pytest.mark.parametrize(
    "chips", [pytest.param("75 90", marks=pytest.mark.database), pytest.param("80 100", marks=pytest.mark.long)]
)
def test_matrix_units_are_cuda(nvrtc, chips):
    """Kernels with matrix units compile with NVRTC, which needs no GPU, from sm_80 on and not before."""
    command = [sys.executable, HERE / "unit_texts.py", nvrtc, *chips.split()]
    result = subprocess.run(command, capture_output=True, text=True, env=environment(python_env()))
    assert result.returncode == 0, result.stderr
    *wrong, counts = result.stdout.splitlines()
    assert not wrong, result.stdout
    with_units, without = (int(word) for word in counts.split() if word.isdecimal())
    assert with_units > 20, counts
    assert without > 2, counts


@pytest.mark.skipif(find_spec("triton") is None, reason="capability: Triton, which torch for the CPU lacks")
def test_kernels_in_triton_on_a_fake_cuda(fakes, tmp_path):
    """They compile for Hopper without a GPU, and launch as they were compiled; tests/stress covers other chips."""
    env = python_env(
        FAKE_CUDA_MAJOR="9",
        FAKE_CUDA_LAUNCHES=str(tmp_path / "launches"),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
    )
    run(sys.executable, "-W", "ignore", HERE / "cuda_triton.py", fakes("fake_cuda", "libcuda.so.1"), env=env)


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
