# SPDX-License-Identifier: BSD-3-Clause
"""The Python half: libraries of installed packages, the choice of a generator, and the checks of `outboard doctor`."""

from __future__ import annotations

import ast
import re
import site
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import torch_outboard
import torch_outboard_nv
from torch_outboard import DeviceProperties, DriverError, Status
from torch_outboard_nv import NvDriver, checks

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent


def _install(folder: Path, package: str = "package", version: str = "12") -> Path:
    path = folder / "nvidia" / package / "lib" / f"libmade_up.so.{version}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_a_library_that_lies_about_is_not_taken(tmp_path: Path, monkeypatch: Any) -> None:
    _install(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(site, "getsitepackages", lambda: ["", "."])
    assert torch_outboard_nv._packaged("libmade_up") == []


def test_all_versions_are_found_the_newest_first(tmp_path: Path, monkeypatch: Any) -> None:
    files = [_install(tmp_path, *each) for each in (("a", "9"), ("cu13", "13"), ("z", "12"), ("cu13", "13.10"))]
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    assert torch_outboard_nv._packaged("libmade_up") == [str(files[place]) for place in (3, 1, 2, 0)]


def test_matrix_units_where_all_devices_have_them() -> None:
    old, new, newest = (DeviceProperties(vendor="NVIDIA Corporation", major=major, minor=6) for major in (7, 8, 12))
    for devices, has_units in (([], False), ([old], False), ([new, newest], True), ([new, old], False)):
        for option, uses_units in ((None, has_units), (True, True), (False, False)):
            options = {} if option is None else {"matrix_units": option}
            assert NvDriver(**options).kernel_generator(devices) == ("ptx_cuda_cpp" if uses_units else "cuda_cpp")


@pytest.mark.parametrize(
    ("chips", "state", "words"),
    [
        ([(9, 0)], "right", "sm_75 to sm_90"),
        ([(8, 6)], "right", "sm_75 to sm_90"),
        ([(7, 0)], "wrong", "no NVRTC here compiles for sm_70"),
        ([(9, 0), (5, 2)], "wrong", "sm_52"),
        ([(12, 0)], "wrong", "sm_120"),
    ],
)
def test_a_chip_that_no_nvrtc_compiles_for_is_reported(monkeypatch, chips, state, words):
    monkeypatch.setattr(checks.ctypes, "CDLL", lambda name: name)
    monkeypatch.setattr(checks, "_targets", lambda library: [75, 80, 90])
    check = checks._of_nvrtc("libnvrtc.so.13", chips)
    assert check.state == state and words in check.found
    assert state == "right" or "12.9" in check.remedy


def test_a_library_that_is_named_and_does_not_open_is_wrong_and_a_missing_one_is_not():
    named = checks._of_library("cudnn", "/nowhere/libcudnn.so.9", ("libcudnn.so.9",), "package", "slower")
    missing = checks._of_library("cudnn", None, ("libno_such_library.so.9",), "package", "slower")
    assert (named.state, missing.state) == ("wrong", "unused") and "slower" in missing.found


def test_the_library_needs_nothing_of_torch_or_python() -> None:
    """The library depends on neither, so one build serves every torch and every Python."""
    command = ["readelf", "--dynamic", str(NvDriver.library)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = [line.split("[")[1].rstrip("]") for line in shown.splitlines() if "(NEEDED)" in line]
    assert needed and not [library for library in needed if library.startswith(("libtorch", "libc10", "libpython"))], (
        needed
    )


def test_a_gpu_runs_older_code_of_its_generation_and_ptx() -> None:
    assert list(NvDriver().compatible_architectures("sm_89"))[:4] == ["sm_89", "sm_86", "sm_80", "compute_89"]
    assert list(NvDriver().compatible_architectures("sm_90"))[:2] == ["sm_90", "compute_90"]
    later = NvDriver().compatible_architectures("sm_130")
    assert later[0] == "compute_121" and not [name for name in later if name.startswith("sm_")]
    assert "sm_80" not in NvDriver().compatible_architectures("sm_87"), "code for other chips does not run on Tegra"
    assert list(NvDriver().compatible_architectures("compute_90")) == ["compute_90"]


@pytest.mark.usefixtures("nvrtc")
def test_programs_are_compiled_without_a_gpu() -> None:
    driver = NvDriver()
    text = b'extern "C" __global__ void zero(float* x) { x[threadIdx.x] = 0; }'
    assert driver.compile_program("sm_90", "cuda", text, "").startswith(b"\x7fELF")
    assert b".target sm_80" in driver.compile_program("compute_80", "cuda", text, "--std=c++17")
    wrong = (("sm_90", "cuda", text[:-1], Status.PROGRAM_REFUSED), ("sm_90", "ptx", text, Status.INVALID_ARGUMENT))
    for architecture, language, code, status in (*wrong, ("sm_20", "cuda", text, Status.INVALID_ARGUMENT)):
        with pytest.raises(DriverError) as caught:
            driver.compile_program(architecture, language, code, "")
        assert caught.value.code == status and str(caught.value)


def test_without_nvrtc_programs_are_not_compiled(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=r"CUDA C\+\+ needs NVRTC, which can't be opened"):
        NvDriver(nvrtc=str(tmp_path / "missing")).compile_program("sm_90", "cuda", b"", "")


def test_it_is_released_with_the_core() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == torch_outboard.__version__
    assert f"torch-outboard>={torch_outboard.__version__}" in project["dependencies"]
    kernels = tomllib.loads((PROJECT / "kernels" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert kernels["version"] == torch_outboard.__version__
    own = {f"{name}=={torch_outboard.__version__}" for name in ("torch-outboard", "torch-outboard-nv")}
    assert own <= set(kernels["dependencies"])


def private_uses(name: str, source: str) -> list[str]:
    """Return the names in a driver's file that are private to torch-outboard, which a vendor must not use."""
    if name.endswith(".py"):
        modules = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                modules += [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                modules += [alias.name for alias in node.names]
        allowed = ("torch_outboard.driver.", "torch_outboard_nv.")
        return [
            module
            for module in modules
            if module.startswith("torch_outboard")
            and not module.startswith(allowed)
            and module.removeprefix("torch_outboard.") not in torch_outboard.__all__
        ]
    included = re.findall(r'^\s*#\s*include\s*["<]([^">]+)', source, re.MULTILINE)
    public = {"torch_outboard/driver.h", "torch_outboard/collectives.h"}
    ours = [
        header for header in included if header.startswith(("torch", "c10/", "ATen/", "csrc/", "../../../", "Python.h"))
    ]
    return [header for header in ours if header not in public and not header.startswith("torch_outboard/support/")]


def test_the_driver_uses_what_a_vendor_may_use() -> None:
    files = [path for folder in ("torch_outboard_nv", "src") for path in (PROJECT / folder).rglob("*")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in files if path.suffix in {".py", ".h", ".cpp"}}
    assert len(texts) > 40
    assert {name: uses for name, text in texts.items() if (uses := private_uses(name, text))} == {}


def test_a_private_use_would_be_seen() -> None:
    assert private_uses("a.py", "from torch_outboard._check import Check") == ["torch_outboard._check.Check"]
    assert private_uses("a.py", "def f():\n    import torch_outboard.drivers") == ["torch_outboard.drivers"]
    assert private_uses("a.py", "from torch_outboard import Option, _C") == ["torch_outboard._C"]
    assert private_uses("a.cpp", '#include "core/error.h"\n#include <torch/all.h>') == ["torch/all.h"]


NOT_INSTALLED = """
import sys, torch, torch_outboard
import importlib.metadata
everything = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **given: [entry for entry in everything(**given) if entry.name != "nv"]
try:
    torch_outboard.attach("nv")
except torch_outboard.RegistrationError as error:
    print(error)
"""


def test_without_the_package_the_error_is_the_line_that_installs_it() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", NOT_INSTALLED], capture_output=True, text=True, cwd=PROJECT.parents[1]
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "driver 'nv' is not installed: pip install torch-outboard-nv\n"
