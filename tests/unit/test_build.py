# SPDX-License-Identifier: BSD-3-Clause
"""The record of the build, and the refusal of any other torch."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from torch_outboard import _build, _version

ROOT = Path(__file__).resolve().parents[2]
MINOR = _build.torch_minor(torch.__version__)
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a record, not yet written, that the package takes for its own."""
    monkeypatch.setattr(_build, "_PACKAGE", tmp_path)
    return tmp_path / "_build_info.json"


def write(path: Path, torch_version: str = torch.__version__, python: str = PYTHON) -> None:
    path.write_text(json.dumps(dataclasses.asdict(_build.BuildInfo(torch_version, python))))


@pytest.mark.parametrize(
    ("version", "minor"),
    [("2.13.0+cpu", (2, 13)), ("2.15.0", (2, 15)), ("2.14.0a0+gitabc", (2, 14)), ("3.0", (3, 0))],
)
def test_torch_minor(version: str, minor: tuple[int, int]) -> None:
    assert _build.torch_minor(version) == minor


def test_torch_minor_refuses_what_is_no_version() -> None:
    with pytest.raises(ValueError, match="'nightly' is not a version of torch"):
        _build.torch_minor("nightly")


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1", "2.15.3+cu130"])
def test_supported(version: str) -> None:
    _build.check_supported(version)


@pytest.mark.parametrize("version", ["1.13.1", "2.10.2", "2.16.0", "3.0.0"])
def test_unsupported_is_refused_with_the_range_and_a_command(version: str) -> None:
    with pytest.raises(ImportError, match=rf"2\.11 to 2\.15, but torch {re.escape(version)} is .*pip install 'torch>="):
        _build.check_supported(version)


def test_requirement_names_the_same_range() -> None:
    requirements = importlib.metadata.requires("torch-outboard") or []
    newest = f"{_build.NEWEST_TORCH[0]}.{_build.NEWEST_TORCH[1] + 1}"
    if not requirements:  # a checkout without pip: the metadata carries the entry points only
        requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    torch_line = next(line for line in requirements if re.match(r"torch\b(?!-)", line))
    assert set(torch_line.removeprefix("torch").split(",")) == {">=2.11", f"<{newest}"}


def test_matching_build_is_accepted(record: Path) -> None:
    write(record)
    _build.check_torch_version()


def test_another_patch_release_is_accepted(record: Path) -> None:
    write(record, f"{MINOR[0]}.{MINOR[1]}.99")
    _build.check_torch_version()


def test_another_minor_is_refused_with_both_versions_and_the_command(record: Path) -> None:
    version = "2.12.0" if MINOR != (2, 12) else "2.14.0"
    write(record, version)
    with pytest.raises(ImportError) as caught:
        _build.check_torch_version()
    message = str(caught.value)
    assert f"built for torch {version}" in message
    assert f"torch {torch.__version__} is running" in message
    assert message.endswith(_build.rebuild_command())


def test_another_python_is_refused(record: Path) -> None:
    write(record, python="3.9")
    with pytest.raises(ImportError, match=rf"Python 3\.9, but Python {PYTHON} is running.*Rebuild it: "):
        _build.check_torch_version()


def test_missing_build_is_refused_with_the_command(record: Path) -> None:
    assert _build.build_info() is None
    with pytest.raises(ImportError, match=r"not built\. Build it: .*" + re.escape(sys.executable)):
        _build.check_torch_version()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"torch": "2.13.0"}', '{"surprise": 1}'])
def test_damaged_record_is_refused_with_its_path(record: Path, text: str) -> None:
    record.write_text(text)
    with pytest.raises(ImportError, match=re.escape(str(record))):
        _build.build_info()


def test_rebuild_command_of_a_checkout(record: Path) -> None:
    package = record.parent / "torch_outboard"
    assert "pip install" in _build.rebuild_command()
    (record.parent / "scripts").mkdir()
    (record.parent / "scripts" / "build").touch()
    (record.parent / "CMakeLists.txt").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_build, "_PACKAGE", package)
        assert _build.rebuild_command() == f"{record.parent}/scripts/build --python {sys.executable}"


def test_version_is_that_of_the_metadata() -> None:
    assert importlib.metadata.version("torch-outboard") == _version.__version__
