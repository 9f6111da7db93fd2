# SPDX-License-Identifier: BSD-3-Clause
"""Libraries of installed packages: the folders that are searched, and those that are not."""

from __future__ import annotations

import site
from pathlib import Path
from typing import Any

from torch_outboard.drivers import nv


def _install(folder: Path, package: str = "package", version: str = "12") -> Path:
    path = folder / "nvidia" / package / "lib" / f"libmade_up.so.{version}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_a_library_that_lies_about_is_not_taken(tmp_path: Path, monkeypatch: Any) -> None:
    _install(tmp_path)
    monkeypatch.chdir(tmp_path)
    for folder in ("", ".", str(tmp_path)):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(site, "getsitepackages", lambda: ["", "."])
    assert nv._packaged("libmade_up") == []


def test_a_library_of_an_installed_package_is_found(tmp_path: Path, monkeypatch: Any) -> None:
    path = _install(tmp_path)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    assert nv._packaged("libmade_up") == [str(path)]


def test_all_versions_are_found_the_newest_first(tmp_path: Path, monkeypatch: Any) -> None:
    found = [_install(tmp_path, *each) for each in (("a", "9"), ("cu13", "13"), ("z", "12"), ("cu13", "13.10"))]
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    assert nv._packaged("libmade_up") == [str(found[place]) for place in (3, 1, 2, 0)]
