# SPDX-License-Identifier: BSD-3-Clause
"""Writes the C++ meta functions of torch's structured operators, read from torch's headers.

  python meta_kernels.py <torch>/include/ATen/ops <file>

The file is included twice by csrc/ops/operator/meta_kernels.cpp: for the headers, and for the entries.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

STRUCTURED = re.compile(r"public at::meta::structured_(\w+)")
OPERATOR = re.compile(r"struct TORCH_API (\w+) \{(.*?)\n\};", re.DOTALL)
SCHEMA = re.compile(r'schema_str = "((?:[^"\\\\]|\\\\.)*)"')
FUNCTION = re.compile(r"TORCH_API [^;]*?[&> ](\w+)\(")
WRITTEN = re.compile(r"\(\w!\)")


def operators_of(header: Path) -> dict[str, str]:
    """Return the schema of each overload in a header of operators, by the name of its struct."""
    found = {name: SCHEMA.search(body) for name, body in OPERATOR.findall(header.read_text(encoding="utf-8"))}
    return {name: schema[1] for name, schema in found.items() if schema}


def arguments_of(schema: str) -> list[str]:
    text = schema[schema.index("(") + 1 : schema.rindex(") ->")]
    return [argument for argument in text.split(", ") if argument != "*"]


def without_aliases(arguments: list[str]) -> list[str]:
    return [WRITTEN.sub("", argument) for argument in arguments]


def group_of(name: str, overloads: dict[str, str]) -> dict[str, str]:
    """Return the structs of the functional, in-place and out= form of one structured operator, by the form's suffix."""
    wanted = arguments_of(overloads[name])
    base = overloads[name].split("(")[0].split(".")[0]
    group = {"": name}
    for other, schema in overloads.items():
        arguments, its_base = arguments_of(schema), schema.split("(")[0].split(".")[0]
        outputs = arguments[len(wanted) :]
        if its_base == base + "_" and without_aliases(arguments) == wanted:
            group["_"] = other
        elif its_base == base and arguments[: len(wanted)] == wanted and outputs and all(map(WRITTEN.search, outputs)):
            group["_outf"] = other
    return group


def entries_of(header: Path) -> list[str]:
    """Return the lines of the operators of one name: OB_META(struct, function of at::meta)."""
    base = header.name.removesuffix("_meta_dispatch.h")
    native = header.with_name(f"{base}_native.h")
    structured = set(STRUCTURED.findall(native.read_text(encoding="utf-8"))) if native.is_file() else set()
    overloads = operators_of(header.with_name(f"{base}_ops.h"))
    functions = set(FUNCTION.findall(header.read_text(encoding="utf-8")))
    lines = []
    for name in sorted(structured & overloads.keys()):
        for suffix, struct in group_of(name, overloads).items():
            if base + suffix in functions:
                lines.append(f"OB_META({struct}, {base}{suffix})")
    return lines


def text(folder: Path) -> str:
    operators = {header: entries_of(header) for header in sorted(folder.glob("*_meta_dispatch.h"))}
    headers = [header.name for header, lines in operators.items() if lines]
    headers += [name.replace("_meta_dispatch", "_ops") for name in headers]
    if not headers:
        sys.exit(f"{folder} has no headers of structured operators: install torch with its headers")
    includes = [f"#include <ATen/ops/{name}>" for name in headers]
    return "\n".join(["#ifdef OB_META_HEADERS", *includes, "#else", *sum(operators.values(), []), "#endif", ""])


def main() -> None:
    folder, file = map(Path, sys.argv[1:])
    wanted = text(folder)
    # Written only when it differs, so that another build compiles nothing again.
    if not file.is_file() or file.read_text(encoding="utf-8") != wanted:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
