# SPDX-License-Identifier: BSD-3-Clause
"""What kernels check, and how they say that it is wrong: by an exception, or in the record of their stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

__all__ = ["CHECKED", "DIVIDING", "RECORD", "ZERO", "index_given", "is_never_zero", "of_operator", "operator_of"]

# Their kernels check indices or conditions.
CHECKED = frozenset(
    {
        "_assert_async",
        "_low_memory_max_pool_offsets_to_indices",
        "embedding",
        "embedding_dense_backward",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
        "gather",
        "index",
        "index_add",
        "index_copy",
        "index_fill",
        "index_put",
        "index_put_",
        "index_select",
        "masked_scatter",
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices",
        "max_pool3d_with_indices_backward",
        "repeat_interleave",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "scatter_reduce",
        "scatter_reduce_",
        "take",
    }
)

# Their kernels divide, and integers by zero are wrong.
DIVIDING = frozenset({"div", "floor_divide", "fmod", "remainder"})

# What the CPU's kernels say of a division by zero.
ZERO = "ZeroDivisionError"

# The CPU's kernels say by a RuntimeError that an index of these is out of bounds, of all others by an IndexError.
_RANGES = frozenset(
    {
        "gather",
        "index_add",
        "max_unpool2d",
        "max_unpool3d",
        "multi_margin_loss",
        "multilabel_margin_loss_forward",
        "scatter",
        "scatter_add",
        "scatter_reduce",
    }
)

# The parameters by which a kernel says what is wrong, which a launch fills in: one argument of the type "record".
RECORD = "OB_GLOBAL ob_record* ob_failures, const ob_u64 ob_ticket, const ob_u32 ob_kernel"

_NUMBER = re.compile(r"^\(\(ob_[iu]\d+\)\(?(-?\d+)U?L?\)?\)$")
_GREATER = re.compile(r"^ob_maximum_i\d+\((\w+|\(.*\)), (\w+|\(.*\))\)$")
_WRAPPED = re.compile(r"^\((?P<is_negative>\w+) \? (?P<wrapped>\w+) : (?P<given>.+)\)$")


def index_given(index: sympy.Expr, texts: Mapping[str, str]) -> str | None:
    """Gives the text of an index before a negative one was counted from the end; None if it was not.

    `texts` are those of variables. Inductor hands over what an index is after that, and errors say what the user gave.
    """
    match = _WRAPPED.match(texts.get(str(index), ""))
    if match is None or not texts.get(match["wrapped"], "").startswith(f"ob_add_i64({match['given']}, "):
        return None
    return match["given"]


def is_never_zero(divisor: str, texts: Mapping[str, str]) -> bool:
    """Says whether the text of an integer is that of a number other than 0, or of the greater of something and a number
    above 0; `texts` are those of variables."""
    text = texts.get(divisor, divisor)
    if match := _GREATER.match(text):
        numbers = [_NUMBER.match(texts.get(one, one)) for one in match.groups()]
        return any(one is not None and int(one[1]) > 0 for one in numbers)
    match = _NUMBER.match(text)
    return match is not None and int(match[1]) != 0


def operator_of(node: Any) -> str:
    """Gives the operator whose check a scheduled node makes: of those that were fused the ones that check something."""
    origins = [one for one in node.node.get_origins() if one.op == "call_function"]
    operators = [one.meta.get("original_aten") or one.target for one in origins]
    names = sorted({one._schema.name for one in operators if isinstance(one, torch._ops.OpOverload)})
    checking = [name for name in names if name.partition("::")[2] in CHECKED]
    return ", ".join(checking or names) or "a compiled function"


def of_operator(check: str, operator: str, dimensions: int) -> str:
    """Return a check of a kernel that is the whole of an eager operator ("aten::gather"), under the operator's name.

    The lowering is made of other operators, whose names and errors a caller doesn't know. `dimensions` are those of the
    operator's first tensor.
    """
    kind, _, _ = check.partition(" ")
    if kind != "index":
        return check
    name = operator.partition("::")[2]
    if name in _RANGES and not (name == "index_add" and dimensions < 2):  # torch adds to vectors by another kernel
        kind = "range"
    return f"{kind} {operator}"
