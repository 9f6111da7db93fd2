# SPDX-License-Identifier: BSD-3-Clause
"""Conversion of Inductor's grid expressions, written in Python, to the formulas of a launch."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._inductor.runtime.triton_heuristics import GridExpr

__all__ = ["evaluate", "formula_of", "grid_formulas"]

_OPERATIONS: Mapping[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}

_SIMPLE = ("add", "sub", "mul", "floordiv", "mod", "eq", "ne", "lt", "le", "gt", "ge")
_EVALUATED: Mapping[str, Callable[[int, int], int]] = {
    **{name: getattr(operator, name) for name in _SIMPLE},
    "ceildiv": lambda left, right: -(left // -right),
    "min": min,
    "max": max,
}


def grid_formulas(meta: dict[str, Any], config: Any, arguments: Sequence[str]) -> tuple[str, str, str]:
    """Return the formulas of a grid's three dimensions, over the positions of a kernel's arguments.

    `meta` is the kernel's inductor_meta, `config` one of its Configs.

    Raises
    ------
    ValueError
        If an expression cannot be converted.
    """
    grid = GridExpr.from_meta(meta, config)
    known = {name: f"a{place}" for place, name in enumerate(arguments)}
    for line in grid.prefix:
        name, _, expression = line.partition(" = ")
        known[name] = formula_of(expression, known)
    x, y, z = (formula_of(str(formula), known) for formula in (grid.x_grid, grid.y_grid, grid.z_grid))
    return x, y, z


def formula_of(expression: str, known: Mapping[str, str]) -> str:
    """Return a Python integer expression as a formula of csrc/kernels/expression.h.

    `known` maps names to their formulas.
    """
    return _formula(ast.parse(expression, mode="eval").body, known)


def evaluate(formula: str, arguments: Sequence[object]) -> int:
    """Evaluate a formula over argument positions, as csrc/kernels/expression.cpp does."""
    stack: list[int] = []
    for word in formula.split():
        if word in _EVALUATED:
            right = stack.pop()
            stack[-1] = int(_EVALUATED[word](stack[-1], right))
        else:
            stack.append(int(arguments[int(word[1:])] if word.startswith("a") else word))  # type: ignore[call-overload]
    return stack.pop()


def _formula(node: ast.expr, known: Mapping[str, str]) -> str:
    match node:
        case ast.Constant(value=int(value)):
            return str(value)
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return str(-value)
        # Python's idiom for rounding up: -(number // -divisor).
        case ast.UnaryOp(
            op=ast.USub(),
            operand=ast.BinOp(left=number, op=ast.FloorDiv(), right=ast.UnaryOp(op=ast.USub(), operand=divisor)),
        ):
            return f"{_formula(number, known)} {_formula(divisor, known)} ceildiv"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"0 {_formula(operand, known)} sub"
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return f"{_formula(left, known)} {_formula(right, known)} {_OPERATIONS[type(operation)]}"
        case ast.Compare(left=left, ops=[operation], comparators=[right]) if type(operation) in _OPERATIONS:
            return f"{_formula(left, known)} {_formula(right, known)} {_OPERATIONS[type(operation)]}"
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[first, *others]):
            parts = [_formula(formula, known) for formula in others]
            return functools.reduce(lambda left, right: f"{left} {right} {name}", parts, _formula(first, known))
        # Inductor guards against a divisor of 0 with a condition that returns 0. The formula
        # replaces the divisor with 1.
        case ast.IfExp(
            test=ast.Compare(left=ast.Name(id=asked), ops=[ast.Eq()], comparators=[ast.Constant(value=0)]),
            body=ast.Constant(value=0),
            orelse=otherwise,
        ) if asked in known:
            divided = _formula(otherwise, {**known, asked: f"{known[asked]} 1 max"})
            return f"{known[asked]} 0 ne {divided} mul"
    raise ValueError(
        f"cannot compute the grid of a kernel from {ast.unparse(node)!r}, which is not a supported formula"
    )
