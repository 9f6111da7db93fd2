# SPDX-License-Identifier: BSD-3-Clause
"""The sizes that CONTRIBUTING.md allows: of files, of functions of Python without docstrings, of comments.

And names of a module have one value: a second one hides the first, which nobody then reads.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "csrc", "drivers", "examples", "include", "scripts", "torch_outboard")
SUFFIXES = {".c", ".cpp", ".h", ".py"}


def files(*more: str) -> Iterator[Path]:
    for folder in (*FOLDERS, *more):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and "_generated" not in path.parts:
                yield path


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of a function's lines, without its docstring."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_files_are_short() -> None:
    found = list(files("tests"))
    assert len(found) > 800
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in found}
    assert {path: length for path, length in lengths.items() if length > 600} == {}


def test_functions_are_short() -> None:
    long: dict[str, int] = {}
    count = 0
    for path in files():
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count += 1
                if lines_of(node) > 60:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines_of(node)
    assert count > 2000
    assert long == {}


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
