# SPDX-License-Identifier: BSD-3-Clause
"""Printing sizes and indices (SymPy expressions) as 64-bit C integers, or narrower if all values fit."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
from torch._inductor.virtualized import V
from torch.utils._sympy.printers import ExprPrinter
from torch.utils._sympy.symbol import SymT, symbol_is_type

from torch_outboard.codegen.dialects.frame import Suffixes
from torch_outboard.codegen.dialects.literals import integer_text

__all__ = ["IndexPrinter"]

_INT32 = 2**31
# Functions with a divisor. The divisor may be zero if the value is unused.
_DIVISIONS = ("FloorDiv", "ModularIndexing", "PythonMod", "Mod")


class IndexPrinter(ExprPrinter):
    """A printer of index expressions. Indices count elements, so divisions are unsigned where SymPy proves it safe.

    Expressions that use only the kernel's `sizes` get a name, which all elements share. Otherwise, compilers would keep
    much of these expressions inside loops, because a division must not move out of a branch. `named` maps such an
    expression's text to its name.
    """

    def __init__(self, suffixes: Suffixes) -> None:
        super().__init__()
        self.suffixes = suffixes
        self.sizes: set[str] = set()
        self.named: dict[str, str] = {}

    def _print(self, expr: Any, **options: Any) -> str:
        text: str = super()._print(expr, **options)
        if not (self.sizes and isinstance(expr, sympy.Expr) and expr.args and expr.is_integer):
            return text
        names = {symbol.name for symbol in expr.free_symbols}
        if not names or not names <= self.sizes or not _is_always_defined(expr):
            return text
        return self.named.setdefault(text, f"ob_size{len(self.named)}")

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        if not symbol_is_type(expr, SymT.TMP):
            return str(expr.name)
        # A variable of the kernel. If it were narrow, multiplying it by a stride could overflow.
        return f"((ob_i64){getattr(V.kernel, 'bounded', {}).get(expr.name, expr.name)})"

    def _print_Integer(self, expr: sympy.Integer) -> str:
        value = int(expr)
        if -_INT32 < value < _INT32:
            return str(value)
        return f"((ob_i64)({integer_text(value, self.suffixes)}))"

    def _print_Float(self, expr: sympy.Float) -> str:
        # SymPy treats 0.0 as an integer.
        return f"{float(expr)!r}{self.suffixes.f64}"

    def _print_FloorDiv(self, expr: sympy.Expr) -> str:
        number, divisor = expr.args
        if number.is_nonnegative and divisor.is_positive:
            return f"({self._inner(number)} / {self._inner(divisor)})"
        return f"ob_floordiv_i64({self._print(number)}, {self._print(divisor)})"

    def _inner(self, expr: sympy.Expr) -> str:
        return f"({self._print(expr)})"

    def _print_ModularIndexing(self, expr: sympy.Expr) -> str:
        number, divisor, modulus = expr.args
        text = self._inner(number)
        if divisor != 1:
            text = f"({text} / {self._inner(divisor)})"
        return f"({text} % {self._inner(modulus)})"

    def _print_PythonMod(self, expr: sympy.Expr) -> str:
        return f"ob_remainder_i64({self._print(expr.args[0])}, {self._print(expr.args[1])})"

    def _print_Mod(self, expr: sympy.Expr) -> str:
        return f"({self._inner(expr.args[0])} % {self._inner(expr.args[1])})"

    def _fold(self, function: str, expr: sympy.Expr) -> str:
        first, *others = (str(self._print(argument)) for argument in expr.args)
        for operand in others:
            first = f"ob_{function}_i64({first}, {operand})"
        return first

    def _print_Min(self, expr: sympy.Expr) -> str:
        return self._fold("minimum", expr)

    def _print_Max(self, expr: sympy.Expr) -> str:
        return self._fold("maximum", expr)

    def _print_Abs(self, expr: sympy.Expr) -> str:
        return f"ob_abs_i64({self._print(expr.args[0])})"

    def _print_Where(self, expr: sympy.Expr) -> str:
        condition, yes, no = (self._inner(argument) for argument in expr.args)
        return f"({condition} ? {yes} : {no})"

    def _print_PowByNatural(self, expr: sympy.Expr) -> str:
        return f"ob_pow_i64({self._print(expr.args[0])}, {self._print(expr.args[1])})"

    def _print_Pow(self, expr: sympy.Expr) -> str:
        base, exponent = expr.args
        if exponent.is_integer and exponent.is_positive:
            return f"ob_pow_i64({self._print(base)}, {self._print(exponent)})"
        return f"OB_LIB(pow)({self._real(base)}, {self._real(exponent)})"

    # Fractions occur in sizes that torch computes with Python floats.

    def _real(self, expr: sympy.Expr) -> str:
        return f"((ob_real)({self._print(expr)}))"

    def _print_FloatPow(self, expr: sympy.Expr) -> str:
        return f"OB_LIB(pow)({self._real(expr.args[0])}, {self._real(expr.args[1])})"

    def _print_IntTrueDiv(self, expr: sympy.Expr) -> str:
        return f"({self._real(expr.args[0])} / {self._real(expr.args[1])})"

    _print_FloatTrueDiv = _print_IntTrueDiv

    def _print_ToFloat(self, expr: sympy.Expr) -> str:
        return self._real(expr.args[0])

    def _to_int(self, function: str, expr: sympy.Expr) -> str:
        return f"((ob_i64)OB_LIB({function})({self._real(expr.args[0])}))"

    def _print_floor(self, expr: sympy.Expr) -> str:
        return self._to_int("floor", expr)

    def _print_ceiling(self, expr: sympy.Expr) -> str:
        return self._to_int("ceil", expr)

    def _print_TruncToInt(self, expr: sympy.Expr) -> str:
        return self._to_int("trunc", expr)

    def _print_RoundToInt(self, expr: sympy.Expr) -> str:
        return self._to_int("rint", expr)

    _print_FloorToInt = _print_floor
    _print_CeilToInt = _print_ceiling

    def _print_OpaqueUnaryFn_sqrt(self, expr: sympy.Expr) -> str:
        return f"OB_LIB(sqrt)({self._real(expr.args[0])})"

    def _helper_sqrt(self, expr: Any) -> str:
        return f"OB_LIB(sqrt)({self._real(expr)})"


def _is_always_defined(expr: sympy.Expr) -> bool:
    """Return True if no divisor in the expression can be zero."""
    if expr.has(sympy.Function):
        divisions = [division for division in sympy.preorder_traversal(expr) if type(division).__name__ in _DIVISIONS]
        return all(divisor.is_positive for division in divisions for divisor in division.args[1:])
    return True
