# SPDX-License-Identifier: BSD-3-Clause
"""Numbers as typed constants, in C and in languages that differ only in their suffixes."""

from __future__ import annotations

import math
import re
from typing import Any

import torch

from torch_outboard.codegen.dialects.frame import Suffixes

__all__ = ["integer_text", "literal_text", "with_suffix"]

# A string, or a constant with a fraction or an exponent but no suffix, which C treats as a double.
_DOUBLE = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![\w.])(?:\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])')


def literal_text(value: Any, dtype: torch.dtype, kind: str, suffixes: Suffixes) -> str:
    """Return a number as a constant of a type whose name in the language is `kind`."""
    if dtype == torch.bool:
        return f"((bool){int(value)})"
    return _real_text(float(value), kind, suffixes) if dtype.is_floating_point else _whole_text(value, kind, suffixes)


def integer_text(value: int, suffixes: Suffixes) -> str:
    """Return a 64-bit integer."""
    # The digits of the least integer, without the sign, would overflow.
    return f"{value}{suffixes.i64}" if value > -(2**63) else f"-{2**63 - 1}{suffixes.i64} - 1"


def with_suffix(text: str, suffix: str) -> str:
    """Return a text in which each floating-point constant without a suffix gets one."""
    return _DOUBLE.sub(lambda match: match[0] + ("" if match[0].startswith('"') else suffix), text)


def _real_text(number: float, kind: str, suffixes: Suffixes) -> str:
    if math.isnan(number):
        return f"(({kind})OB_NAN)"
    if kind == "float" and math.isfinite(number):
        # Write the nearest float with enough digits: a constant beyond its range would be an error
        # in C.
        number = float(torch.tensor(number, dtype=torch.float64).to(torch.float32))
    if math.isinf(number):
        return f"({'-' if number < 0 else ''}({kind})OB_INFINITY)"
    return f"({number!r}{suffixes.f32 if kind == 'float' else suffixes.f64})"


def _whole_text(value: Any, kind: str, suffixes: Suffixes) -> str:
    number = int(value)
    if number == -(2**63):
        return f"((ob_i64)({integer_text(number, suffixes)}))"
    if number >= 2**63:
        return f"(({kind}){number}{suffixes.u64})"
    if abs(number) >= 2**31:
        return f"(({kind}){number}{suffixes.i64})"
    return f"(({kind}){number})" if number >= 0 else f"(({kind})({number}))"
