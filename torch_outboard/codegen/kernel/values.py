# SPDX-License-Identifier: BSD-3-Clause
"""Operands of a kernel's operations as text: constants, variables, and conversions between types."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.codegen.common import CSEVariable
from torch._inductor.virtualized import OpsValue, V

from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES, NARROW, SUFFIXES

__all__ = ["cast", "literal", "plain", "suffix", "type_of"]


def suffix(dtype: torch.dtype) -> str:
    """Return the suffix of helpers for variables of a type."""
    return "f32" if dtype in NARROW else SUFFIXES[dtype]


def literal(value: Any, dtype: torch.dtype) -> str:
    """Return a number as a typed constant, in the current kernel's dialect."""
    return V.kernel.dialect.literal(value, dtype)  # type: ignore[no-any-return]


def plain(x: Any) -> Any:
    """Return the operand inside Inductor's value wrapper."""
    return x.value if isinstance(x, OpsValue) else x


def type_of(x: Any) -> torch.dtype:
    """Return the type of an operand, which is a variable or a number."""
    x = plain(x)
    if isinstance(x, CSEVariable):
        assert x.dtype is not None, f"{x} has no type"
        return x.dtype
    if isinstance(x, bool):
        return torch.bool
    return torch.float32 if isinstance(x, float) else torch.int64


def cast(x: Any, dtype: torch.dtype) -> str:
    """Return an operand as a value of a type."""
    x = plain(x)
    if isinstance(x, (bool, int, float)):
        return literal(x, dtype)
    source_type = type_of(x)
    if COMPUTE_TYPES[source_type] == COMPUTE_TYPES[dtype]:
        return str(x)
    if dtype == torch.bool:
        return f"({x} != 0)"
    kind = COMPUTE_TYPES[dtype]
    # C leaves conversions of negative numbers to unsigned types, and of numbers too large for a
    # narrow type, undefined. This conversion matches c10::convert.
    if source_type.is_floating_point and not dtype.is_floating_point and dtype not in (torch.int32, torch.int64):
        return f"(({kind})(ob_i64){x})"
    return f"(({kind}){x})"
