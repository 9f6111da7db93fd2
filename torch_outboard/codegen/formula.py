# SPDX-License-Identifier: BSD-3-Clause
"""Integer formulas as text, in the postfix form that csrc/kernels/expression.h reads."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy.functions import CeilDiv, FloorDiv, Max, Min, Mod, ModularIndexing, PowByNatural, PythonMod

__all__ = ["MAX_INT64", "expression_of", "formula"]

MAX_INT64 = 2**63 - 1  # the largest integer in formulas, which use 64 bits

_OPERATIONS = {
    sympy.Add: "add",
    sympy.Mul: "mul",
    sympy.Mod: "mod",
    sympy.Min: "min",
    sympy.Max: "max",
    CeilDiv: "ceildiv",
    FloorDiv: "floordiv",
    Max: "max",
    Min: "min",
    Mod: "mod",
    PythonMod: "mod",
    sympy.Eq: "eq",
    sympy.Ne: "ne",
    sympy.StrictLessThan: "lt",
    sympy.LessThan: "le",
    sympy.StrictGreaterThan: "gt",
    sympy.GreaterThan: "ge",
    sympy.And: "and",
    sympy.Or: "or",
}


def expression_of(number: int | torch.SymInt) -> sympy.Expr:
    """Return a size or stride of a traced tensor as a sympy expression."""
    return number.node.expr if isinstance(number, torch.SymInt) else sympy.Integer(number)


def formula(expression: sympy.Expr, places: Mapping[sympy.Symbol, int]) -> str:
    """Return an integer expression as text; `places` maps its symbols to positions among the kernel's arguments.

    Raises
    ------
    ValueError
        A symbol is not an argument, a number does not fit in 64 bits, or formulas lack an operation.
    """
    match expression:
        case sympy.Integer():
            if not -MAX_INT64 <= expression <= MAX_INT64:
                raise ValueError(f"the number {expression} doesn't fit into 64 bits")
            return str(int(expression))
        case sympy.Symbol():
            if expression not in places:
                raise ValueError(
                    f"the formula for the kernel's threads uses {expression}, which is not an argument of the kernel"
                )
            return f"a{places[expression]}"
        case sympy.Pow() | PowByNatural() if expression.args[1].is_Integer and expression.args[1] > 0:
            operation, operands = "mul", [expression.args[0]] * int(expression.args[1])
        case sympy.Not():
            return f"{formula(expression.args[0], places)} 0 eq"
        case sympy.logic.boolalg.BooleanAtom():
            return "1" if expression else "0"
        case ModularIndexing():
            number, divisor, modulus = (formula(operand, places) for operand in expression.args)
            return f"{number} {divisor} floordiv {modulus} mod"
        case _:
            kind = next((kind for kind in _OPERATIONS if isinstance(expression, kind)), None)
            if kind is None:
                raise ValueError(
                    f"the number of threads can't be computed from {expression}: use integers, sizes, +, * and //"
                )
            operation, operands = _OPERATIONS[kind], list(expression.args)
    words = [formula(operand, places) for operand in operands]
    return functools.reduce(lambda left, right: f"{left} {right} {operation}", words)
