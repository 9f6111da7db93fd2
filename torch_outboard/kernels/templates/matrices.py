# SPDX-License-Identifier: BSD-3-Clause
"""Parts shared by the linear algebra kernels: operators over batches of matrices, with one group per matrix.

All tensors have one batch dimension. The items of a group share the columns or rows of a step, and synchronize between
steps. The matrix stays in device memory. On CPUs, one item runs the same text for a whole matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from torch_outboard.codegen.dialects.dialect import STORAGE_TYPES
from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, Tensor
from torch_outboard.kernels.templates.channels import holds
from torch_outboard.kernels.templates.product import filled

__all__ = ["MAX_SHORT_SIDE", "MAX_LONG_SIDE", "Text", "by_columns", "check", "defined", "least", "of_group", "of_items"]

# The core composes larger matrices of blocks with these sizes: cmake/book.py.
MAX_SHORT_SIDE = 256  # rows or columns of a matrix, whichever is smaller
MAX_LONG_SIDE = 4096  # rows or columns
_GROUP = 128
_LANES = 32  # items per column
_BYTES_OF_ITEM = 16  # group memory per item: a double and a row number

_library = torch.library.Library("outboard", "FRAGMENT")  # type: ignore[no-untyped-call]


def defined(schema: str, meta: Any) -> Any:
    """Define an operator that only this package's plans call, and return it."""
    name = schema.partition("(")[0]
    _library.define(schema)  # type: ignore[no-untyped-call]
    _library.impl(name, meta, "Meta")  # type: ignore[no-untyped-call]
    return getattr(torch.ops.outboard, name).default


def by_columns(like: torch.Tensor, rows: Any, columns: Any) -> torch.Tensor:
    """Return new matrices in column-major order."""
    return like.new_empty(like.shape[0], columns, rows).transpose(1, 2)


def least(rows: Any, columns: Any) -> Any:
    """Return the smaller of two sizes, which may be symbols."""
    return torch.sym_min(rows, columns)  # type: ignore[no-untyped-call]


def check(call: TemplateCall, *tensors: Tensor) -> None:
    """Raise Refusal if the matrices have a type without kernels, or are too large."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise CallRefusal("its tensors have different dtypes [mixed-types]")
    for tensor in tensors:
        if tensor.dtype not in (torch.float32, torch.float64):
            raise CallRefusal(f"factorizations of {tensor.dtype} aren't supported [products]")
        rows, columns = tensor.size[-2:]
        is_small = holds(sympy.Le(sympy.Max(rows, columns), MAX_SHORT_SIDE)) or (
            holds(sympy.Le(sympy.Min(rows, columns), MAX_SHORT_SIDE))
            and holds(sympy.Le(sympy.Max(rows, columns), MAX_LONG_SIDE))
        )
        if not is_small:
            raise CallRefusal(f"a matrix has more than {MAX_SHORT_SIDE} rows and columns [matrix-size]")


# Begins the text of a group that factors `given`: copies it to `factors`.
_COPY = """\
  $BEGIN
  $WRITTEN own = factors + matrix * $FACTORS_BATCH;
  for (ob_i64 at = me; at < $ROWS * $COLUMNS; at += $GROUP) {
    const ob_i64 row = at % $ROWS, column = at / $ROWS;
    own[row * $FACTORS_ROW + column * $FACTORS_COLUMN] =
        given[matrix * $GIVEN_BATCH + row * $GIVEN_ROW + column * $GIVEN_COLUMN];
  }
  $SYNC"""


@dataclass
class Text:
    """A kernel with its placeholder texts: sizes, and strides such as $GIVEN_ROW of a matrix `given`."""

    kernel: Kernel
    words: dict[str, str]

    def size(self, word: str, value: Any) -> None:
        self.words[word] = self.kernel.number(word.lower(), value)

    def fill(self, text: str) -> Kernel:
        self.kernel.text = filled(text, self.words)
        return self.kernel


def _new_text(call: TemplateCall, name: str, read: Mapping[str, Tensor], written: Mapping[str, Tensor]) -> Text:
    kernel = Kernel(name)
    reals = (tensor.dtype for tensor in (*read.values(), *written.values()) if tensor.dtype.is_floating_point)
    dtype = next(reals, torch.float32)
    real = STORAGE_TYPES[dtype]
    words = {
        "REAL": real,
        "EPSILON": f"({real}){torch.finfo(dtype).eps!r}",
        "TINY": f"({real}){torch.finfo(dtype).tiny!r}",
        "ABS": call.dialect.function("fabs"),
        "SQRT": call.dialect.function("sqrt"),
    }
    words["READ"], words["WRITTEN"] = (
        call.dialect.pointer(real, is_written=is_written) for is_written in (False, True)
    )
    for name, tensor in {**read, **written}.items():
        # Items read each other's stores, so no pointer is the only access to its memory.
        kernel.pointer(name, tensor, is_written=name in written, is_alone=name not in written)
        for axis, stride in zip(("batch", "row", "column"), tensor.stride, strict=False):
            words[f"{name}_{axis}".upper()] = kernel.number(f"{name}_{axis}", stride)
    return Text(kernel, words)


def of_items(
    call: TemplateCall, name: str, read: Mapping[str, Tensor], written: Mapping[str, Tensor], count: Any
) -> Text:
    """Return a kernel of independent items; its text begins with the item's number, `item`."""
    text = _new_text(call, name, read, written)
    text.kernel.spread(call, count, _GROUP)
    text.words["BEGIN"] = f"const ob_i64 item = {call.dialect.item};\n  if (item >= $COUNT) return;"
    text.size("COUNT", count)
    return text


def of_group(
    call: TemplateCall,
    name: str,
    read: Mapping[str, Tensor],
    written: Mapping[str, Tensor],
    count: Any,
    arrays: Mapping[str, str] | None = None,
    shared: Mapping[str, str] | None = None,
) -> Text:
    """Return a kernel with one group per matrix; its text begins with `matrix` and `me`, the item in the group.

    $GROUP is the number of items, of which $LANES share a column. $SYNC makes the stores of all items visible to all.
    `shared` has placeholder texts for groups of several items; only they may use the arrays. For a single item, these
    placeholders are empty.
    """
    text = _new_text(call, name, read, written)
    is_shared = call.dialect.has_groups and not (call.dialect.vectors and call.is_cpu)
    group = min(_GROUP, call.limits.items_with(_BYTES_OF_ITEM)) if is_shared else 1
    text.kernel.group, text.kernel.groups = group, count
    if is_shared:
        kinds = {name: filled(kind, text.words) for name, kind in (arrays or {}).items()}
        text.kernel.arrays = [LocalArray(kind, name, str(group)) for name, kind in kinds.items()]
    text.words |= {
        "BEGIN": f"const ob_i64 matrix = {'OB_GROUP_NUMBER' if is_shared else call.dialect.item};\n"
        f"  const ob_i64 me = {'OB_ITEM_OF_GROUP' if is_shared else '0'};",
        "GROUP": str(group),
        "LANES": str(min(_LANES, group)),
        "COPY": _COPY,
        "SYNC": "OB_BARRIER_ALL;" if is_shared else "",
        **{word: text if is_shared else "" for word, text in (shared or {}).items()},
    }
    return text
