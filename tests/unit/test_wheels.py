# SPDX-License-Identifier: BSD-3-Clause
"""A released wheel: several cores in one file, and the choice of the one for the installed torch."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from importlib.machinery import SourceFileLoader

import pytest

from torch_outboard import _build

from .contract import ROOT

SCRIPT = ROOT / "scripts" / "merge_wheels"
NAME = "torch_outboard-9.9-cp311-cp311-linux_x86_64.whl"


@pytest.fixture(scope="module")
def merging():
    loader = SourceFileLoader("merge_wheels", str(SCRIPT))
    spec = importlib.util.spec_from_loader("merge_wheels", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def wheel(folder, torch, name=NAME, python="3.11", sanitize="", **files):
    """Write a wheel as scikit-build makes it for one torch."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "torch_outboard/__init__.py": "code",
        "torch_outboard/_C.so": f"core of {torch}",
        "torch_outboard/lib/libtorch_outboard.so": f"library of {torch}",
        "torch_outboard/_build_info.json": json.dumps({"torch": torch, "python": python, "sanitize": sanitize}),
        "torch_outboard/drivers/lib/libob_sim.so": f"driver built beside {torch}",
        "torch_outboard-9.9.dist-info/WHEEL": "Wheel-Version: 1.0\n",
        "torch_outboard-9.9.dist-info/RECORD": "old",
        **files,
    }
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, content in contents.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o755 if path.endswith(".so") else 0o644) << 16
            archive.writestr(entry, content)
    return folder / name


def run(*arguments, status=0):
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_cores_lie_side_by_side_and_the_rest_is_there_once(tmp_path):
    wheels = [wheel(tmp_path / torch, torch) for torch in ("2.13.0+cpu", "2.15.0")]
    run("--out", tmp_path / "dist", *wheels)
    with zipfile.ZipFile(tmp_path / "dist" / NAME) as archive:
        files = {info.filename: (archive.read(info), info.external_attr >> 16) for info in archive.infolist()}
    assert set(files) == {
        "torch_outboard/__init__.py",
        "torch_outboard/drivers/lib/libob_sim.so",
        "torch_outboard-9.9.dist-info/WHEEL",
        "torch_outboard-9.9.dist-info/RECORD",
        *(
            f"torch_outboard/lib/{folder}/{name}"
            for folder in ("torch_2_13", "torch_2_15")
            for name in ("_C.so", "lib/libtorch_outboard.so", "_build_info.json")
        ),
    }
    assert files["torch_outboard/lib/torch_2_15/_C.so"] == (b"core of 2.15.0", 0o755)
    lines = dict(line.split(",", 1) for line in files["torch_outboard-9.9.dist-info/RECORD"][0].decode().splitlines())
    for name, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert lines.pop(name) == ("," if name.endswith("RECORD") else f"sha256={digest},{len(content)}")
    assert not lines
    first = (tmp_path / "dist" / NAME).read_bytes()
    run("--out", tmp_path / "dist", *wheels)
    assert (tmp_path / "dist" / NAME).read_bytes() == first


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"torch": "2.13.1"}, "are both for torch_2_13"),
        ({"torch": "2.15.0", "python": "3.12"}, "differ in version, Python or platform"),
        ({"torch": "2.15.0", "name": NAME.replace("9.9", "9.8")}, "differ in version, Python or platform"),
        ({"torch": "2.15.0", "sanitize": "address"}, "built with the sanitizer address"),
        ({"torch": "2.15.0", "torch_outboard/__init__.py": "other code"}, "__init__.py differs between"),
        ({"torch": "2.15.0", "torch_outboard/new.py": "more"}, "new.py differs between"),
    ],
)
def test_wheels_that_do_not_belong_together_are_refused(tmp_path, other, words):
    pair = [wheel(tmp_path / "a", "2.13.0"), wheel(tmp_path / "b", **other)]
    assert words in run("--out", tmp_path / "dist", *pair, status=1).stderr
    assert not (tmp_path / "dist").exists()


def test_a_wheel_without_a_file_of_the_first_is_refused(tmp_path):
    pair = [wheel(tmp_path / "a", "2.13.0", **{"torch_outboard/new.py": "more"}), wheel(tmp_path / "b", "2.15.0")]
    assert "has no torch_outboard/new.py" in run("--out", tmp_path / "dist", *pair, status=1).stderr


def test_a_wheel_of_another_project_and_one_that_is_too_large_are_refused(tmp_path, merging):
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        archive.writestr("other/__init__.py", "")
    assert "was not built by pip wheel of this project" in run(tmp_path / NAME, status=1).stderr
    merged = merging.merge([merging.Wheel(wheel(tmp_path / "a", "2.13.0"))])
    with pytest.raises(ValueError, match="more than 0"):
        merging.write(merged, tmp_path / "dist" / NAME, largest=10)
    assert list((tmp_path / "dist").iterdir()) == []


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a folder that the package takes for its own, with cores for two versions of torch."""
    monkeypatch.setattr(_build, "_PACKAGE", tmp_path)
    for torch in ("2.12.0", "2.14.1"):
        folder = tmp_path / "lib" / ("torch_" + "_".join(torch.split(".")[:2]))
        folder.mkdir(parents=True)
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        (folder / "_build_info.json").write_text(json.dumps({"torch": torch, "python": python, "sanitize": ""}))
    return tmp_path


@pytest.mark.parametrize(("torch", "folder"), [("2.12.3+cu130", "torch_2_12"), ("2.14.0", "torch_2_14")])
def test_the_core_of_the_installed_torch_is_chosen(package, monkeypatch, torch, folder):
    monkeypatch.setattr(_build, "installed_torch", lambda: torch)
    path = []
    _build.add_core(path)
    assert path == [str(package / "lib" / folder)]
    _build.check_built_for(torch)


def test_a_torch_that_the_wheel_does_not_serve_is_reported_what_to_do(package, monkeypatch):
    monkeypatch.setattr(_build, "installed_torch", lambda: "2.13.0")
    path = []
    _build.add_core(path)
    assert path == []
    with pytest.raises(ImportError) as caught:
        _build.check_built_for("2.13.0")
    message = str(caught.value)
    assert "supports torch 2.12, 2.14, but torch 2.13.0 is installed" in message
    assert "pip install 'torch==2.14.*'" in message and _build.rebuild_command() in message


def test_a_build_from_source_wins(package, monkeypatch):
    monkeypatch.setattr(_build, "installed_torch", lambda: "2.12.3")
    (package / "_build_info.json").write_text("{}")
    path = []
    _build.add_core(path)
    assert path == [] and _build.core_folder() == package


def test_drivers_need_nothing_of_torch_or_python():
    """One build of a driver serves every torch and every Python: a wheel has each driver once."""
    libraries = sorted((ROOT / "torch_outboard" / "drivers" / "lib").glob("*.so"))
    assert libraries or not (ROOT / "torch_outboard" / "_C.so").exists()
    for library in libraries:
        shown = subprocess.run(
            ["readelf", "--dynamic", str(library)], capture_output=True, text=True, check=True
        ).stdout
        needed = [line.split("[")[1].rstrip("]") for line in shown.splitlines() if "(NEEDED)" in line]
        assert needed and not [lib for lib in needed if lib.startswith(("libtorch", "libc10", "libpython"))], needed
