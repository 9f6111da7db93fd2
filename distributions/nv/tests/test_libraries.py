# SPDX-License-Identifier: BSD-3-Clause
"""Operators that run in NVIDIA's libraries, tested with stand-ins against the CPU."""

from __future__ import annotations

import pytest


def test_products_by_the_vendors_library(run_program, fakes):
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cublaslt", "libcublasLt.so.13")]
    run_program("vendor_products.py", *libraries)


def test_convolutions_by_the_vendors_library(run_program, fakes):
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    run_program("vendor_convolutions.py", *libraries)


def test_plans_of_the_vendors_library_are_kept(run_program, fakes, tmp_path):
    """A process uses an earlier process's plans, unless the library has changed or the files are damaged."""
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    variables = {"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path / "cache")}

    def searches(**more: str) -> int:
        count, engine = run_program("kept_plans.py", *libraries, **variables, **more).stdout.split()
        assert engine == "0"
        return int(count)

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


@pytest.mark.parametrize(
    ("case", "variables"),
    [
        ("swaps", {"OB_FAKE_CUDNN_COMPILES": "0"}),
        ("captures", {"OB_FAKE_CUDNN_COMPILES": "0"}),
        ("waits", {"OB_FAKE_CUDNN_COMPILES": "2"}),
        ("waits", {"OB_FAKE_CUDNN_COMPILES": "0", "OUTBOARD_BUILD_THREADS": "0"}),
        ("ends", {"OB_FAKE_CUDNN_COMPILES": "0", "OUTBOARD_BUILD_THREADS": "1"}),
    ],
    ids=["swaps", "captures", "repeats", "no_threads", "ends"],
)
def test_another_engine_runs_while_one_compiles(run_program, fakes, tmp_path, case, variables):
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    run_program("interim_engines.py", *libraries, case, OUTBOARD_KERNEL_CACHE_DIR=str(tmp_path), **variables)


def test_programs_are_built_while_engines_compile(run_program, fakes, nvrtc):
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    variables = {"OB_FAKE_CUDNN_COMPILES": "0", "OUTBOARD_BUILD_THREADS": "2", "FAKE_CUDA_MAJOR": "9"}
    run_program("interim_engines.py", *libraries, "builds_go_on", nvrtc, OUTBOARD_KERNEL_CACHE_DIR="", **variables)


@pytest.mark.usefixtures("nvrtc")
def test_attention_by_the_vendors_library(run_program, fakes):
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    run_program("vendor_attention.py", *libraries, FAKE_CUDA_MAJOR="9")


def test_recurrent_nets_by_the_vendors_library(run_program, fakes):
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    run_program("vendor_recurrent.py", *libraries, FAKE_CUDA_MAJOR="9")


@pytest.mark.parametrize(("chip", "version"), [("9", "91200"), ("7", "91900")])
def test_recurrent_nets_without_bfloat16(run_program, fakes, chip, version):
    variables = dict(FAKE_CUDA_MAJOR=chip, OB_FAKE_CUDNN_VERSION=version, OB_TEST_NO_BFLOAT16="1")
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
    """If the library is missing or too old, or has too little memory, other providers run the calls."""
    library = tmp_path / "libcudnn.so.9" if way == "missing" else fakes("fake_cudnn", "libcudnn.so.9")
    more = {"80907": {"OB_FAKE_CUDNN_VERSION": way}, "memory": {"OB_FAKE_CUDNN_WORKSPACE": str(1 << 29)}}
    variables = dict(FAKE_CUDA_MAJOR="9", **more.get(way, {}))
    run_program("no_cudnn.py", fakes("fake_cuda", "libcuda.so.1"), library, **variables)


@pytest.mark.parametrize("version", ["90800", "91000", "91001"])
def test_attention_by_versions_that_cannot(run_program, fakes, version):
    variables = dict(FAKE_CUDA_MAJOR="9", OB_FAKE_CUDNN_VERSION=version)
    libraries = [fakes("fake_cuda", "libcuda.so.1"), fakes("fake_cudnn", "libcudnn.so.9")]
    run_program("no_cudnn.py", *libraries, "attention", **variables)
