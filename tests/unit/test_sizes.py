# SPDX-License-Identifier: BSD-3-Clause
"""Comments are narrow, and a name of a module has one value: a second one would hide the first, which nobody reads."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "csrc", "distributions", "drivers", "examples", "include", "scripts", "torch_outboard")
SUFFIXES = {".c", ".cpp", ".h", ".py"}


def files(*more: str) -> Iterator[Path]:
    for folder in (*FOLDERS, *more):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and "_generated" not in path.parts:
                yield path


def test_names_of_modules_have_one_value() -> None:
    twice: list[str] = []
    count = 0
    for path in files():
        if path.suffix != ".py":
            continue
        names = set()
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets if isinstance(node, ast.Assign | ast.AnnAssign) else ():
                if isinstance(target, ast.Name):
                    count += 1
                    twice += [f"{path.relative_to(ROOT)}:{node.lineno}"] if target.id in names else []
                    names.add(target.id)
    assert count > 1000
    assert twice == []


# Tables, rules and addresses: their lines are as long as they have to be.
LAYOUT = re.compile(r"\S {2,}\S|^\W*\||-{20}|https?://")


def comments_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the comments that have lines of their own, with the numbers of the lines."""
    text = path.read_text()
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
                yield token.start[0], token.line.rstrip("\n")
    else:
        for number, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith("//"):
                yield number, line


def test_comments_are_narrow() -> None:
    wide = []
    count = 0
    for path in files("tests"):
        for number, line in comments_of(path):
            count += 1
            if len(line) > 100 and not LAYOUT.search(line):
                wide.append(f"{path.relative_to(ROOT)}:{number}")
    assert count > 5000
    assert wide == []
