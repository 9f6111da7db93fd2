# SPDX-License-Identifier: BSD-3-Clause
"""Reads the Python module that Inductor generates for a graph: the kernels that it defines, and its calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Extern", "Kernel", "read_code"]

# By the function that creates a kernel from its source. For a vendor's generator, the report shows
# the function's name.
_LANGUAGES = {"cpp_kernel": "C++", "cpp_pybinding": "C++", "triton": "Triton"}
_ORIGINS = re.compile(r"^\s*(?:#|//).*Original ATen: \[(.*)\]")


@dataclass
class Kernel:
    """A generated kernel.

    Attributes
    ----------
    name, language : str
        `language` is "C++", "Triton", the driver's language, or the function of a vendor's generator that creates the
        kernel.
    operators : list of str
        The operators that the kernel fuses, from the graph before decompositions, such as "aten.gelu".
    lines : int
        Non-blank lines of its source.
    calls : int
        Calls in the generated code; a call in a loop counts once.
    """

    name: str
    language: str
    lines: int
    operators: list[str] = field(default_factory=list)
    calls: int = 0


@dataclass
class Extern:
    """An operator that the generated code calls because it has no generated kernel.

    Attributes
    ----------
    name : str
        Such as "aten::mm", or "aten::mm.out" if the code names the overload.
    calls : int
        Calls in the generated code.
    provider : str
        The providers that ran it, separated by commas: "native", "host", "fallback". Empty if no run on the device was
        observed.
    """

    name: str
    calls: int = 0
    provider: str = ""


def read_code(code: str) -> tuple[list[Kernel], list[Extern]]:
    """Return the kernels and the operators of generated code. Raise SyntaxError if the text is not Python."""
    module = ast.parse(code)
    aliases: dict[str, str] = {}
    kernels: dict[str, Kernel] = {}
    for statement in module.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        target = statement.targets[0].id
        if isinstance(statement.value, ast.Call) and (source := _source(statement.value)) is not None:
            lines = sum(1 for line in source.splitlines() if line.strip())
            kernels[target] = Kernel(target, _language(statement.value), lines)
        elif name := _dotted(statement.value, {}):
            aliases[target] = name
    externs: dict[str, Extern] = {}
    origins = dict(_origins(code))
    unread = sorted(origins)
    for call in sorted(_calls(module), key=lambda call: call.lineno):
        name = _dotted(call.func, aliases)
        used: Kernel | Extern | None = kernels.get(name) or kernels.get(name.removesuffix(".run"))
        if used is None and (operator := _operator(name)) is not None:
            used = externs.setdefault(operator, Extern(operator))
        if used is None:
            continue
        used.calls += 1
        # Inductor writes a call's origins above it. An operator's origins include its inputs'
        # origins, but its name suffices.
        above = [line for line in unread if line <= call.lineno]
        unread = unread[len(above) :]
        if above and isinstance(used, Kernel):
            used.operators += [operator for operator in origins[above[-1]] if operator not in used.operators]
    return list(kernels.values()), list(externs.values())


def _calls(module: ast.Module) -> Iterator[ast.Call]:
    for statement in module.body:
        # The benchmark at the end of the module also calls kernels; do not count its calls.
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef)) and not statement.name.startswith("benchmark_"):
            yield from (node for node in ast.walk(statement) if isinstance(node, ast.Call))


def _origins(code: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(code.splitlines(), 1):
        if match := _ORIGINS.match(line):
            yield number, [name.strip() for name in match[1].split(",") if name.strip()]


def _language(call: ast.Call) -> str:
    maker = _dotted(call.func, {}).rpartition(".")[2]
    if maker == "device_kernel" and isinstance(call.args[1], ast.Constant):
        return str(call.args[1].value)
    return _LANGUAGES.get(maker, maker)


def _source(call: ast.Call) -> str | None:
    """Return the source among the arguments of a call that creates a kernel."""
    for argument in call.args:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and "\n" in argument.value:
            return argument.value
    return None


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, aliases)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _operator(name: str) -> str | None:
    """Return the operator that a dotted name calls ("aten::mm", "aten::mm.out"), or None for other names."""
    if name.startswith("extern_kernels."):
        return "aten::" + name.removeprefix("extern_kernels.")
    parts = name.removeprefix("torch.ops.").split(".")
    if not name.startswith("torch.ops.") or len(parts) < 2:
        # A copy between devices is a method call.
        return "aten::copy_" if name.endswith(".copy_") else None
    overload = f".{parts[2]}" if len(parts) > 2 and parts[2] != "default" else ""
    return f"{parts[0]}::{parts[1]}{overload}"
