# SPDX-License-Identifier: BSD-3-Clause
"""The folders in which drivers look for libraries of installed packages, and those in which they must not."""

from __future__ import annotations

import site
from pathlib import Path
from typing import Any

from torch_outboard.driver import package_folders


def test_a_folder_that_lies_about_is_not_searched(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("", ".", str(tmp_path)):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(site, "getsitepackages", lambda: ["", "."])
    folders = package_folders()
    assert folders and all(folder.is_absolute() for folder in folders)
    assert tmp_path not in [folder.resolve() for folder in folders]


def test_folders_of_installed_packages_are_searched_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path), str(tmp_path)])
    assert package_folders().count(tmp_path) == 1
