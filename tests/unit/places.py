# SPDX-License-Identifier: BSD-3-Clause
"""The places that docs/maintaining.md names, and copies of the sources in which its steps are taken."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch_outboard

from .contract import ROOT

__all__ = ["Change", "Named", "copy_sources", "listing", "named_files", "section", "words"]

# In which folders a name on the page is looked for, beside the folder of the name before it.
_USUAL = ("", "csrc", "torch_outboard", "include/torch_outboard")
# What a maintainer changes. Documentation names words without listing them.
_FOLDERS = ("cmake", "csrc", "drivers", "include", "tests/unit", "torch_outboard")
_SUFFIXES = {".c", ".cpp", ".h", ".py"}


class Named(NamedTuple):
    """The files that a text names in backquotes, as paths from the root, and the names that stand for no file."""

    files: set[str]
    missing: list[str]


def named_files(text: str) -> Named:
    """Return the files and folders that a page names in backquotes.

    A name without a folder stands for a file beside the one before it in its line, or in one of the usual places.
    """
    places = [ROOT / place for place in _USUAL]
    files, missing = set(), []
    for line in text.splitlines():
        beside: list[Path] = []
        for name in re.findall(r"`([\w/.]+(?:/|\.(?:py|cpp|h|c|toml)))`", line):
            paths = [place / name for place in (*beside, *places) if (place / name).exists()]
            if paths:
                beside = [paths[0].parent]
                files.add(str(paths[0].relative_to(ROOT)))
            else:
                missing.append(name)
    return Named(files, missing)


def section(page: str, title: str) -> str:
    """Return the text below a heading, up to the next one."""
    _, heading, rest = page.partition(f"### {title}\n")
    assert heading, f"docs/maintaining.md has no heading {title!r}"
    return rest.partition("\n#")[0]


def _sources(root: Path) -> Iterator[Path]:
    for folder in _FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file():
                yield path


def words(text: str) -> set[str]:
    """Return the words of a source: names, and texts in quotes with them."""
    return set(re.findall(r'"\w+"|\w+', text)) | set(re.findall(r"\w+", text))


def listing(
    root: Path, names: Collection[str], share: float, spelled: Callable[[str], Iterable[str]]
) -> dict[str, set[str]]:
    """Return the files that list names, with the names that each has. A file lists them if it has this share of them.

    `spelled` returns the words that stand for a name, each in one language.
    """
    files = {}
    for path in _sources(root):
        known = words(path.read_text(encoding="utf-8"))
        here = {name for name in names if not known.isdisjoint(spelled(name))}
        if len(here) >= share * len(names):
            files[str(path.relative_to(root))] = here
    return files


class Change(NamedTuple):
    """A maintainer's change of one file: text put before another text, or a new file if `before` is empty."""

    file: str
    before: str
    text: str

    def make(self, root: Path) -> None:
        path = root / self.file
        if not self.before:
            assert not path.exists()
            path.write_text(self.text, encoding="utf-8")
            return
        old = path.read_text(encoding="utf-8")
        assert old.count(self.before) == 1, f"{self.file} has {self.before!r} {old.count(self.before)} times"
        path.write_text(old.replace(self.before, self.text + self.before), encoding="utf-8")


def copy_sources(root: Path, changes: Iterable[Change]) -> None:
    """Make a folder with the sources and the built libraries, and make changes there.

    What is not changed is a link, with Python's compiled files: processes there must not write those.
    """
    changes = list(changes)
    # The first tells tests where the sources are, the second makes a folder of
    # the package for its libraries.
    copied = {"tests/unit/contract.py", "torch_outboard/__init__.py", *(change.file for change in changes)}
    for folder in _FOLDERS:
        (root / folder).parent.mkdir(parents=True, exist_ok=True)
        _copy(folder, root, copied)
    package = Path(torch_outboard.__file__).parent  # installed elsewhere than the sources, it has the libraries
    for path in (*package.glob("_C*.so"), package / "lib", package / "_build_info.json"):
        if path.exists() and not (root / "torch_outboard" / path.name).exists():
            (root / "torch_outboard" / path.name).symlink_to(path)
    for change in changes:
        change.make(root)


def _copy(name: str, root: Path, copied: Collection[str]) -> None:
    source, target = ROOT / name, root / name
    if not any(file == name or file.startswith(f"{name}/") for file in copied):
        target.symlink_to(source)
    elif source.is_dir():
        target.mkdir()
        for path in source.iterdir():
            _copy(f"{name}/{path.name}", root, copied)
    else:
        shutil.copyfile(source, target)
