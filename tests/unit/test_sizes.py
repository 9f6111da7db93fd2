# SPDX-License-Identifier: BSD-3-Clause
"""The sizes that CONTRIBUTING.md allows: 600 lines a file, 60 lines a function of Python without its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "csrc", "drivers", "examples", "include", "scripts", "torch_outboard")
SUFFIXES = {".c", ".cpp", ".cu", ".h", ".py"}


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
