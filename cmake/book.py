# SPDX-License-Identifier: BSD-3-Clause
"""Writes the C++ tables of what the core knows of operators, read from the book and the templates.

  python book.py <torch_outboard/kernels/book> <file>

Rows are read as text: `Operator("aten::add ...", facts=Facts(...))`, with literals. So the build imports neither torch
nor the package. csrc/ops includes the file where it defines one of the macros.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# The fields of Facts that are a row of csrc/ops/operator/facts.cpp, up to this one, with the enumerations of facts.h.
LAST_OF_CORE = "cpu_operator"
ENUMERATIONS = {
    "accepts": "Elements",
    "checked_values": "CheckedValues",
    "known_warning": "KnownWarning",
    "layout": "Layout",
}
FUNCTIONS = ("correct",)


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(folder: Path) -> dict[str, Any]:
    """Return the facts of each name in the book, sorted by name."""
    facts_type = module_of(folder / "facts.py").Facts
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.py")):
        shown = path.relative_to(folder.parents[2]).as_posix()
        for call, given in _calls_with_facts(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{shown}:{call.lineno}"
            try:
                names = ast.literal_eval(call.args[0])
                facts = facts_type(**{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in given.keywords})
            except (TypeError, ValueError) as error:
                sys.exit(f"{place}: facts have literals alone, since a build reads them as text: {error}")
            for name in names.split():
                if name in found:
                    sys.exit(f"{place}: another row has facts of {name}: make one row of both")
                found[name] = facts
    return dict(sorted(found.items()))


def _calls_with_facts(module: ast.Module) -> Iterator[tuple[ast.Call, ast.Call]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Operator":
            for keyword in node.keywords:
                if keyword.arg == "facts" and isinstance(keyword.value, ast.Call):
                    yield node, keyword.value


def core_values(facts: Any) -> list[str]:
    """Return the C++ initializers of the values that differ from the defaults."""
    values = []
    for field in dataclasses.fields(facts):
        value = getattr(facts, field.name)
        if value != field.default:
            values.append(f".{field.name} = {_cpp(field.name, value)}")
        if field.name == LAST_OF_CORE:
            break
    return values


def _cpp(name: str, value: Any) -> str:
    if name in ENUMERATIONS:
        return f"{ENUMERATIONS[name]}::{value.title().replace(' ', '')}"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) and name not in FUNCTIONS else str(value)


def entries(name: str, facts: Any) -> Iterator[tuple[str, str]]:
    """Yield the macros that a row of the book becomes, with their arguments.

    Rows are referred to by name, not by line: a line that moves would compile the tables again.
    """
    base, _, overload = name.partition(".")
    exact = base if overload == "default" else name
    if values := core_values(facts):
        yield "OB_FACTS", f'"{name}", {", ".join(values)}'
    for kind in ("numbers", "arguments", "dtypes"):
        # A name without an overload is that of all overloads, of the in-place form too.
        op = exact if overload else base.removeprefix("aten::")
        for arguments, predicate in getattr(facts, f"bad_{kind}").items():
            yield f"OB_BAD_{kind.upper()}", f'"{op}", "{arguments}", {predicate}, "{name}"'
    if facts.check_values:
        yield "OB_BAD_VALUES", f'"{name}", {facts.check_values}, {_cpp("", facts.is_left_to_kernels)}'
    if facts.composed:
        yield "OB_COMPOSED", f'"{exact}", {facts.composed}'
    if facts.shape_rule:
        yield "OB_SHAPE_RULE", f"{exact.removeprefix('aten::').replace('.', '_')}, {facts.shape_rule}"
    for trait in ("kernel_checks", "kernel_divides", "kernel_adds", "raises_runtime_error"):
        if getattr(facts, trait):
            yield "OB_KERNEL_TRAIT", f'"{trait}", "{name}"'


def matrix_limits(kernels: Path) -> tuple[int, int]:
    """Return the fewer and the more rows or columns of a matrix that one group's kernel takes."""
    module = ast.parse((kernels / "templates" / "matrices.py").read_text(encoding="utf-8"))
    found = {ast.unparse(line.targets[0]): line.value for line in module.body if isinstance(line, ast.Assign)}
    return ast.literal_eval(found["MAX_SHORT_SIDE"]), ast.literal_eval(found["MAX_LONG_SIDE"])


def text(folder: Path) -> str:
    tables: dict[str, list[str]] = {}
    for name, facts in rows_of(folder).items():
        for macro, arguments in entries(name, facts):
            tables.setdefault(macro, []).append(f"{macro}({arguments})")
    tables["OB_MATRIX_LIMITS"] = [f"OB_MATRIX_LIMITS({', '.join(map(str, matrix_limits(folder.parent)))})"]
    parts = [line for macro, lines in tables.items() for line in (f"#ifdef {macro}", *lines, "#endif")]
    return "\n".join([*parts, ""])


def main() -> None:
    folder, file = map(Path, sys.argv[1:])
    wanted = text(folder)
    # Written only when it differs, so that another build compiles nothing again.
    if not file.is_file() or file.read_text(encoding="utf-8") != wanted:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
