# SPDX-License-Identifier: BSD-3-Clause
"""The sizes of a traced call: torch's symbols, with a faster test of conditions on them.

Most conditions that lowerings and templates check hold for some sizes and not for others, and become guards. torch
finds this out last, after expanding the condition and asking sympy for signs. Two samples of the sizes that give
different answers show this immediately.
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.fx.experimental.symbolic_shapes import ShapeEnv, canonicalize_bool_expr
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

__all__ = ["Sizes"]

# The second sample: the number added to lower bounds, and a factor that makes symbols differ.
_BEYOND, _FACTOR = 1 << 20, 3

_RELATIONS = {
    **{sympy.Eq: operator.eq, sympy.Ne: operator.ne, sympy.Lt: operator.lt, sympy.Le: operator.le},
    **{sympy.Gt: operator.gt, sympy.Ge: operator.ge},
}
_OPERATIONS: dict[type, Callable[[Sequence[int]], int]] = {
    sympy.Add: sum,
    sympy.Mul: math.prod,
    FloorDiv: lambda args: args[0] // args[1],
    Mod: lambda args: args[0] % args[1],
    PythonMod: lambda args: args[0] % args[1],
    Max: max,
    Min: min,
}


class _NoSample(Exception):
    """An expression has unsupported operations, or a division by zero."""


@contextlib.contextmanager
def _without_warnings_about_bounds() -> Iterator[None]:
    """Suppress torch's warning, in this thread, that it has no bounds for a quotient.

    When Inductor chooses tiles, torch 2.11 and 2.12 look for such bounds, log a warning, and continue without them.
    """
    here, log = threading.get_ident(), logging.getLogger("torch.utils._sympy.interp")

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != here or "pow_by_natural" not in map(str, record.args or ())

    log.addFilter(is_of_others)
    try:
        yield
    finally:
        log.removeFilter(is_of_others)


class Sizes(ShapeEnv):
    """An environment in which sizes that are equal by chance do not define a separate class."""

    def __init__(self) -> None:
        super().__init__(duck_shape=False)

    def _maybe_evaluate_static(self, expr: Any, **options: Any) -> Any:  # type: ignore[override]
        if type(expr) in _RELATIONS and not any(options.values()) and self._is_open(expr):
            return None
        if type(expr) is sympy.Eq and any(power.exp.is_negative for power in expr.atoms(sympy.Pow)):
            with _without_warnings_about_bounds():
                return ShapeEnv._maybe_evaluate_static(self, expr, **options)
        return ShapeEnv._maybe_evaluate_static(self, expr, **options)

    # torch clears its cached answers through this attribute when a range changes.
    _maybe_evaluate_static.cache_clear = ShapeEnv._maybe_evaluate_static.cache_clear  # type: ignore[attr-defined]

    def _refine_ranges(self, expr: Any) -> None:
        if not _bounds_product(expr) or any(symbol in self.replacements for symbol in expr.free_symbols):
            super()._refine_ranges(expr)

    def _is_open(self, condition: Any) -> bool:
        """Return True if a condition holds for some sizes within their ranges and not for others.

        A condition that is already a guard is not open.
        """
        symbols = condition.free_symbols
        hints = {symbol: self.backed_var_to_val.get(symbol) for symbol in symbols}
        if any(symbol in self.replacements or not isinstance(value, sympy.Integer) for symbol, value in hints.items()):
            return False
        try:
            now = _holds(condition, {symbol: int(value) for symbol, value in hints.items()})  # type: ignore[arg-type]
            if not any(_holds(condition, sample) != now for sample in self._samples(sorted(symbols, key=str))):
                return False
        except _NoSample:
            return False
        return canonicalize_bool_expr(self.simplify(condition)) not in self.axioms

    def _samples(self, symbols: Sequence[Any]) -> list[dict[Any, int]]:
        """Return sizes at the lower bounds and far beyond them, as far as their ranges allow."""
        bounds = [self.var_to_range[symbol] for symbol in symbols]
        if not all(bound.lower.is_Integer for bound in bounds):
            return []
        samples = []
        for beyond in (0, _BEYOND):
            sizes = [int(bound.lower) + beyond * _FACTOR**number for number, bound in enumerate(bounds)]
            if all(size <= bound.upper for size, bound in zip(sizes, bounds, strict=True)):
                samples.append(dict(zip(symbols, sizes, strict=True)))
        return samples


def _bounds_product(condition: Any) -> bool:
    """Return True for a bound of a product of sizes, which bounds no single size. torch finds this out only at the end.

    The bound divided by other sizes is not an integer, and torch refines ranges only with integers.
    """
    if type(condition) not in _RELATIONS or not condition.rhs.is_Integer or condition.rhs.is_zero:
        return False
    factors = condition.lhs.args if condition.lhs.is_Mul else ()
    symbols = [factor for factor in factors if not factor.is_Integer]
    return len(symbols) > 1 and all(factor.is_Symbol for factor in symbols)


def _holds(condition: Any, sizes: dict[Any, int]) -> bool:
    left, right = (_value(side, sizes) for side in condition.args)
    return bool(_RELATIONS[type(condition)](left, right))


def _value(expression: Any, sizes: dict[Any, int]) -> int:
    if expression.is_Symbol:
        return sizes[expression]
    if expression.is_Integer:
        return int(expression)
    operation = _OPERATIONS.get(type(expression))
    if operation is None:
        raise _NoSample
    try:
        return operation([_value(argument, sizes) for argument in expression.args])
    except ZeroDivisionError:
        raise _NoSample from None
