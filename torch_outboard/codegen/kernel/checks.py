# SPDX-License-Identifier: BSD-3-Clause
"""The checks of kernels, and how kernels report failures: by an exception, or in the record of their stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from torch_outboard import _C
from torch_outboard.codegen.dialects.frame import Parameter

__all__ = [
    "ADDING_OPERATORS",
    "CHECKED_OPERATORS",
    "DIVISION_OPERATORS",
    "RECORD",
    "ZERO",
    "is_never_zero",
    "of_operator",
    "operator_of",
    "unwrapped_index",
]


def _with_trait(trait: str) -> frozenset[str]:
    """Return the operators with a trait in the book. The core has the traits: this room must not import the book."""
    return frozenset(name.partition("::")[2] for kind, name in _C.kernel_traits() if kind == trait)


# Operators whose kernels check indices or conditions, divide, or add to memory that several items
# write.
CHECKED_OPERATORS = _with_trait("kernel_checks")
DIVISION_OPERATORS = _with_trait("kernel_divides")
ADDING_OPERATORS = _with_trait("kernel_adds")

# Operators for which the CPU's kernel raises RuntimeError for an out-of-bounds index; all others
# raise IndexError.
_RANGES = _with_trait("raises_runtime_error")

# The CPU kernels' message for a division by zero.
ZERO = "ZeroDivisionError"

# The parameters with which a kernel reports a failure. A launch fills them in from one argument of
# the type "record".
RECORD = (
    Parameter("ob_failures", "ob_record", is_pointer=True, is_written=True),
    Parameter("ob_ticket", "ob_u64"),
    Parameter("ob_kernel", "ob_u32"),
)

_NUMBER = re.compile(r"^\(\(ob_[iu]\d+\)\(?(-?\d+)[UL]*\)?\)$")
_GREATER = re.compile(r"^ob_maximum_i\d+\((\w+|\(.*\)), (\w+|\(.*\))\)$")
_WRAPPED = re.compile(r"^\((?P<is_negative>\w+) \? (?P<wrapped>\w+) : (?P<given>.+)\)$")


def unwrapped_index(index: sympy.Expr, texts: Mapping[str, str]) -> str | None:
    """Return the text of an index before negative values were wrapped, or None if the index was not wrapped.

    `texts` maps variables to their texts. Inductor passes the wrapped index, but errors report the user's value.
    """
    match = _WRAPPED.match(texts.get(str(index), ""))
    if match is None or not texts.get(match["wrapped"], "").startswith(f"ob_add_i64({match['given']}, "):
        return None
    return match["given"]


def is_never_zero(divisor: str, texts: Mapping[str, str]) -> bool:
    """Return True if an integer's text is a nonzero number, or a maximum with a number above 0.

    `texts` maps variables to their texts.
    """
    text = texts.get(divisor, divisor)
    if match := _GREATER.match(text):
        numbers = [_NUMBER.match(texts.get(group, group)) for group in match.groups()]
        return any(number is not None and int(number[1]) > 0 for number in numbers)
    match = _NUMBER.match(text)
    return match is not None and int(match[1]) != 0


def operator_of(node: Any) -> str:
    """Return the operator responsible for a node's check. For fused operators, return all with checks."""
    origins = [origin for origin in node.node.get_origins() if origin.op == "call_function"]
    operators = [origin.meta.get("original_aten") or origin.target for origin in origins]
    names = sorted({operator._schema.name for operator in operators if isinstance(operator, torch._ops.OpOverload)})
    checking = [name for name in names if name.partition("::")[2] in CHECKED_OPERATORS]
    return ", ".join(checking or names) or "a compiled function"


def of_operator(check: str, operator: str, dimensions: int) -> str:
    """Return a check with the name of the eager operator that the kernel implements, such as "aten::gather".

    The lowering consists of other operators, whose names and errors mean nothing to the caller. `dimensions` is the
    number of dimensions of the operator's first tensor.
    """
    kind, _, _ = check.partition(" ")
    if kind != "index":
        return check
    name = operator.partition("::")[2]
    if name in _RANGES and not (name == "index_add" and dimensions < 2):  # torch uses another kernel for vectors
        kind = "range"
    return f"{kind} {operator}"
